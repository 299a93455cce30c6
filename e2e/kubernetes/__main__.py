"""`make e2e`: the product on a real Kubernetes (`python -m e2e.kubernetes --help`).

The exit status is 0 if nothing failed, 1 if a case failed, 2 after wrong use, and 3 if this machine cannot run the
suite; then the message says why.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog
from rich.console import Console

from e2e.kubernetes import images
from e2e.kubernetes.cases import Case, chosen
from e2e.kubernetes.machines import OUTSIDE_VARIABLE
from e2e.kubernetes.release import Images, operators_of_all
from e2e.kubernetes.report import RunResult, exit_status, print_run, summary_line, to_json
from e2e.kubernetes.run import Options, Suite
from tools.kubernetes.api import Cluster
from tools.kubernetes.cgroups import Cgroup
from tools.kubernetes.errors import ClusterError, MachineError
from tools.kubernetes.layout import ROOT, Layout, default_layout
from tools.kubernetes.lifecycle import Lifecycle

EXIT_FAILED: Final = 1
EXIT_USE: Final = 2
EXIT_CANNOT: Final = 3
EXIT_INTERRUPTED: Final = 130


def say(line: str) -> None:
    """Print one line for humans."""
    print(f"e2e: {line}", flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line. The environment gives the defaults, so that `make e2e QUICK=1` works."""
    result = argparse.ArgumentParser(prog="python -m e2e.kubernetes", description=__doc__)
    result.add_argument("--quick", action="store_true", default=bool(os.environ.get("QUICK")), help="a few cases")
    only = [part.strip() for part in os.environ.get("ONLY", "").split(",") if part.strip()]
    result.add_argument("--only", nargs="+", default=only, metavar="NAME", help="cases with that in their name")
    result.add_argument("--list", action="store_true", help="name the cases")
    result.add_argument("--keep", action="store_true", default=bool(os.environ.get("KEEP")), help="leave the namespace")
    result.add_argument(
        "--strict-limits", action="store_true", default=bool(os.environ.get("STRICT")),
        help="fail a case whose figure is over its limit; use it only on a machine that does nothing else",
    )  # fmt: skip
    result.add_argument("--use", metavar="NAMESPACE", help="an installation that a run with --keep left; it stays")
    result.add_argument("--images", metavar="TAG", help="use images that are loaded under this tag, build none")
    result.add_argument("--previous", metavar="TAG", help="of the version before, loaded: what an upgrade begins from")
    result.add_argument("--spark", default="", metavar="IMAGE", help="Spark's, loaded, by its whole reference")
    result.add_argument("--revision", default="", help="build the images of this commit [default: the tree as it is]")
    result.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "e2e-out"))
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite, and return the exit status."""
    options = parser().parse_args(argv)
    try:
        cases = chosen(options.only, quick=options.quick)
    except ValueError as error:
        say(str(error))
        return EXIT_USE
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    try:
        if OUTSIDE_VARIABLE in os.environ:
            return _inside(options, cases)
        return _outside(options)
    except MachineError as error:
        say(f"this machine cannot: {error}")
        return EXIT_CANNOT
    except ClusterError as error:
        say(f"FAILED {error}")
        return EXIT_FAILED


# ---- outside: the machine, the images -------------------------------------------------------------------------


def _outside(options: argparse.Namespace) -> int:
    """Start a cluster if there is none, and run the suite. A cluster that was started for this run ends with it."""
    layout = _ours()
    was_there = layout.kubeconfig.exists()
    lifecycle = Lifecycle(layout, say)
    try:
        if not was_there or not _is_up(Cluster(layout)):
            lifecycle.up()
        return _run_inside(options, Cluster(layout))
    finally:
        if not was_there and not options.keep:
            lifecycle.down()


def _run_inside(options: argparse.Namespace, cluster: Cluster) -> int:
    """Load the images, then run the suite in a mount namespace with the cluster's DNS.

    This process stays outside of it.
    """
    others = operators_of_all(cluster)
    if others:
        say(f"BEWARE: {', '.join(others)} looks after all namespaces, this suite's too")
    loaded = images.of_tag(options.images) if options.images else images.ensure(cluster, say, options.revision)
    out: Path = options.out
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    command = [sys.executable, "-m", "e2e.kubernetes", f"--out={out.resolve()}", f"--images={loaded.tag}"]
    command += [f"--use={options.use}"] if options.use else []
    if any(case.needs_previous for case in chosen(options.only, quick=options.quick)):
        previous = images.ensure_previous(cluster, say)
        command += [f"--previous={previous.tag}"] if previous is not None else []
    if any(case.needs_spark for case in chosen(options.only, quick=options.quick)):
        command += [f"--spark={options.spark or images.ensure_spark(cluster, say)}"]
    for name in ("quick", "keep", "strict_limits"):
        command += [f"--{name.replace('_', '-')}"] * bool(getattr(options, name))
    command += ["--only", *options.only] if options.only else []
    environment = {**os.environ, **cluster.environment(), OUTSIDE_VARIABLE: str(os.getpid())}
    with _machine_of_clients() as machine:
        inside = subprocess.Popen(cluster.inside_dns(command), env=environment, cwd=ROOT)
        machine.add(inside.pid)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the suite gets Ctrl-C too, and clears up
        signal.signal(signal.SIGTERM, lambda *_: inside.terminate())
        return inside.wait()


@contextmanager
def _machine_of_clients() -> Iterator[Cgroup]:
    """The cgroup of the suite and its clients, which weighs as much as a node.

    Without it, the clients get an eighth of a node's share when processors are scarce, and the longest pause is the
    time for which a client waited for a processor.
    """
    machine = Cgroup("seriatim-clients")
    machine.create()
    try:
        yield machine
    finally:
        machine.kill()
        machine.remove()


def _ours() -> Layout:
    """Return the place of this checkout's cluster, whether it is up or not.

    Raises:
        MachineError: KUBECONFIG names another cluster.
    """
    layout = default_layout()
    named = os.environ.get("KUBECONFIG")
    if named and Path(named).resolve() != layout.kubeconfig.resolve():
        raise MachineError("these cases kill nodes and use names of the cluster, which only our own lets them do: "
                           "unset KUBECONFIG")  # fmt: skip
    return layout


def _is_up(cluster: Cluster) -> bool:
    """Whether all nodes are there and Ready.

    If a node is not Ready, wait for 90 s, because another run may bring it back.
    """
    try:
        cluster.kubectl("wait", "node", "--all", "--for=condition=Ready", "--timeout=90s")
        return all(cluster.is_node_running(node) for node in cluster.nodes)
    except ClusterError:
        return False


# ---- inside: the suite ----------------------------------------------------------------------------------------


def _inside(options: argparse.Namespace, cases: list[Case]) -> int:
    out: Path = options.out
    with (out / "suite.log").open("w") as log:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
        try:
            run = asyncio.run(_run(options, cases, images.of_tag(options.images, options.spark)))
        except (KeyboardInterrupt, asyncio.CancelledError):
            say("interrupted; what was made is removed")
            return EXIT_INTERRUPTED
    path = out / "report.json"
    path.write_text(to_json(run))
    print_run(Console(width=None if sys.stdout.isatty() else 140), run)
    say(f"report: {path}")
    print(summary_line(run), flush=True)
    return exit_status(run)


async def _run(options: argparse.Namespace, cases: list[Case], loaded: Images) -> RunResult:
    """Run the suite as a task that SIGTERM ends as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    previous = images.of_tag(options.previous) if options.previous else None
    wanted = Options(options.out, options.keep, options.strict_limits, options.use or "", previous)
    suite = Suite(Cluster.find(), loaded, wanted, say)
    return await suite.run(cases)


if __name__ == "__main__":
    sys.exit(main())
