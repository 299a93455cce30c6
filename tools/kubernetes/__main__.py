"""`python -m tools.kubernetes`: a Kubernetes of three nodes on this machine, up and down.

Exit status 0: done. 1: something went wrong. 2: wrong use. 3: this machine cannot run it; the message says why.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Final

from tools.kubernetes import programs
from tools.kubernetes.api import Cluster
from tools.kubernetes.errors import ClusterError, MachineError
from tools.kubernetes.layout import BASE_IMAGE, default_layout
from tools.kubernetes.lifecycle import Lifecycle

EXIT_FAILED: Final = 1
EXIT_CANNOT: Final = 3


def say(line: str) -> None:
    """One line for humans."""
    print(f"e2e-cluster: {line}", flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    commands = argparse.ArgumentParser(prog="python -m tools.kubernetes", description=__doc__)
    subparsers = commands.add_subparsers(dest="command", required=True, metavar="COMMAND")
    subparsers.add_parser("up", help="bring it up, or what of it is down (the first time builds for about 10 minutes)")
    subparsers.add_parser("down", help="end and remove everything that `up` made; the caches stay")
    subparsers.add_parser("status", help="processes, nodes and disks")
    subparsers.add_parser("build", help="build Kubernetes, Helm and CoreDNS from their Go modules, where they are not")
    subparsers.add_parser("check", help="whether this machine can run it: exit status 0 or 3")
    subparsers.add_parser("base-image", help=f"make the base image {BASE_IMAGE} and give it to buildah")
    images = subparsers.add_parser("images", help="give image archives to all nodes")
    images.add_argument("archive", nargs="+", type=Path)
    again = subparsers.add_parser("image-tag", help="give an image that the nodes have a second name")
    again.add_argument("reference")
    again.add_argument("other")
    run = subparsers.add_parser("run", help="run a command of the host with the cluster's names and KUBECONFIG")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    for name, text in (
        ("node-kill", "cut a node's power; its disks stay"),
        ("node-start", "bring it back"),
        ("node-delete", "kill it, delete its Node object and destroy its disks"),
    ):
        node = subparsers.add_parser(name, help=text)
        node.add_argument("number", type=int, help="1 to 3")
    return commands


def main(argv: list[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    arguments = parser().parse_args(argv)
    try:
        return _dispatch(arguments)
    except MachineError as error:
        say(f"this machine cannot: {error}")
        return EXIT_CANNOT
    except ClusterError as error:
        say(f"FAILED {error}")
        return EXIT_FAILED


def _dispatch(arguments: argparse.Namespace) -> int:
    layout = default_layout()
    lifecycle = Lifecycle(layout, say)
    cluster = Cluster(layout)
    match arguments.command:
        case "up":
            lifecycle.up()
        case "down":
            lifecycle.down()
        case "status":
            text = cluster.describe()
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `status | head` ends without a word
            print(text)
        case "build":
            programs.build_all(layout.bin, say)
        case "check":
            lifecycle.check()
            say("this machine can")
        case "base-image":
            lifecycle.make_base_image()
        case "images":
            for archive in arguments.archive:
                cluster.load_image(archive)
        case "image-tag":
            cluster.tag_image(arguments.reference, arguments.other)
        case "run":
            return cluster.run(arguments.argv)
        case "node-kill":
            cluster.kill_node(arguments.number)
        case "node-start":
            cluster.start_node(arguments.number)
        case "node-delete":
            cluster.delete_node(arguments.number)
        case other:
            raise AssertionError(other)
    return 0


if __name__ == "__main__":
    sys.exit(main())
