"""The history of a run, retold so that each aircraft is a partition of its own. This module is pure, but for reading.

The checker (`seriatim.history`) judges order within a partition. In this demo the promise is order within a key. So
each line of the history is split into lines about one message, and the number of the message's aircraft takes the place
of the partition. Then the checker judges each aircraft: nothing is lost, comes twice without a flag, or out of order.

A dead letter is retold in one more way. Its deliveries at the place where it failed are left out, and so is that place,
because its copy has another one. So the checker sees when the copy came, and no sooner.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Line = dict[str, Any]

_ABOUT_MESSAGES: Final = ("send", "outcome", "deliver")
_LIVES: Final = ("history", "close")  # of processes: the lines of all of them are merged here


def retell(paths: Iterable[Path], keys: Sequence[int], dead: Mapping[int, str]) -> list[Line]:
    """The lines of all files, by time, for `seriatim.history.check_events`.

    Args:
        paths: The files of the history.
        keys: The number of the aircraft of each event.
        dead: The place at which each dead letter failed, by the number of its event.

    Raises:
        OSError: A file cannot be read.
        ValueError: A line is no JSON object, but the last one of a file may be torn.
    """
    lines = [line for path in paths for line in _lines(path) if line["k"] not in _LIVES]
    lines.sort(key=lambda line: line["at"])
    sequences: Counter[int] = Counter()
    return [told for line in lines for told in _retold(line, keys, dead, sequences)]


def _lines(path: Path) -> Iterator[Line]:
    for text in path.read_text().splitlines(keepends=True):
        if text.endswith("\n") and text.strip():
            yield json.loads(text)


def _retold(line: Line, keys: Sequence[int], dead: Mapping[int, str], sequences: Counter[int]) -> Iterator[Line]:
    if line["k"] not in _ABOUT_MESSAGES:
        yield line
        return
    rest = {name: value for name, value in line.items() if name not in ("m", "n")}
    numbers = line["m"] if isinstance(line["m"], list) else range(line["m"], line["m"] + line.get("n", 1))
    for at, number in enumerate(numbers):
        told = {**rest, "m": number}
        key = keys[number]
        if "q" in line:
            told["q"] = key
        if "o" in line:
            told["o"] = place = _place(line["o"], at)
            if number in dead and line["k"] == "outcome":
                del told["o"]
            if dead.get(number) == place and line["k"] == "deliver":
                continue
        if line["k"] == "send":
            told["s"] = sequences[key]
            sequences[key] += 1
        yield told


def _place(first: str, at: int) -> str:
    segment, _, index = first.partition(":")
    return f"{segment}:{int(index) + at}"
