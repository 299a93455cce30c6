"""`make e2e-pages`: types the commands of the Kubernetes pages, word for word, on the cluster of this checkout.

It installs the chart as a reader does, with definitions, from images that it builds as the page says. So the cluster
must be new: a second set of definitions, or another operator for all namespaces, would not be what a reader has.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from e2e.pages import Block, PageError, Reader, runnable
from tools.kubernetes.api import Cluster
from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import default_layout

READ_ON_KUBERNETES: Final = ("docs/operating/kubernetes.md",)
"""The pages with blocks that are run on Kubernetes."""

COMMAND_S: Final = 900.0
"""The slowest command builds four images, which takes two minutes on an idle machine."""


def main(argv: list[str] | None = None) -> int:
    """Read the pages. The exit status is 0, or 1 if a command does something else than its page says."""
    parser = argparse.ArgumentParser(prog="python -m e2e.kubernetes.reading", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the transcript of each page into this directory")
    parser.add_argument("--built", action="store_true", help="leave out `make images`: .local/images is current")
    options = parser.parse_args(argv)
    out = options.out
    why_not = obstacle(Cluster(default_layout()))
    if why_not:
        print(f"e2e-pages: {why_not}", file=sys.stderr)
        return 1
    failed = 0
    for page in READ_ON_KUBERNETES:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            checkout = Path(directory) / "checkout"
            with Reader(checkout, kubernetes=True, deadline_s=COMMAND_S) as reader:
                try:
                    reader.read(without_builds(runnable(page)) if options.built else runnable(page))
                except PageError as error:
                    failed += 1
                    print(f"e2e-pages: {error}", file=sys.stderr)
                finally:
                    transcript = "\n".join(reader.transcript) + "\n"
        print(transcript, end="")
        print(f"e2e-pages: {page}: {time.monotonic() - began:.0f} s", flush=True)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{Path(page).stem}.txt").write_text(transcript)
    print(f"{len(READ_ON_KUBERNETES) - failed} passed, {failed} failed")
    return 1 if failed else 0


def without_builds(blocks: list[Block]) -> list[Block]:
    """The blocks without the command that builds images."""
    return [
        replace(block, lines=tuple(line for line in block.lines if not line.startswith("$ make images")))
        for block in blocks
    ]


def obstacle(cluster: Cluster) -> str:
    """Why the pages cannot be read on this cluster; empty if they can."""
    try:
        definitions = cluster.kubectl("get", "customresourcedefinitions", "--output=name")
        namespaces = cluster.kubectl("get", "namespaces", "--output=name")
    except (ClusterError, OSError, subprocess.SubprocessError) as error:
        return f"the cluster does not answer (`make e2e-cluster`): {error}"
    if "seriatim.dev" in definitions or "namespace/shop" in namespaces.split():
        return "a reader has a new cluster, and this one was used: `make e2e-cluster-down e2e-cluster`"
    return ""


if __name__ == "__main__":
    sys.exit(main())
