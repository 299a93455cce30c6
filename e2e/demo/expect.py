"""Computes the expected histories straight from the input file, in a process of its own, and writes them to a file.

It takes about ten seconds of a processor, so it runs at the lowest priority. At its end it prints `done`. The file is
one JSON object of histories by aircraft. The consumer writes its rebuilt histories in the same form.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from e2e.demo.rebuild import expected

NICENESS: Final = 15


def write_histories(path: Path, histories: Mapping[bytes, bytes]) -> None:
    """Write histories into a file.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text(json.dumps({key.decode(): text.decode() for key, text in histories.items()}))


def read_histories(path: Path) -> dict[bytes, bytes]:
    """Read the histories that `write_histories` wrote.

    Raises:
        OSError: The file cannot be read.
    """
    return {key.encode(): text.encode() for key, text in json.loads(path.read_text()).items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo.expect", description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--limit", type=int, default=None, help="only so many events")
    arguments = parser.parse_args()
    os.nice(NICENESS)
    write_histories(arguments.path, expected(arguments.limit))
    print(json.dumps({"k": "done"}), flush=True)


if __name__ == "__main__":
    main()
