"""Decodes the inputs of some decoders, one after another in a process of its own, and prints what happened as JSON."""

from __future__ import annotations

import json
import mmap
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from random import Random
from typing import Final

from .draws import Decoder

MEMORY_BYTES_MAX: Final = 128 << 20
"""A decoder may take so much more memory than before its first input. Inputs have some KB; bodies unpack to 4 MiB."""

ADDRESSES_BYTES_MAX: Final = 2 << 30
"""The process may have this many more bytes of addresses: threads and Arrow's pool reserve many that they do not
use."""

INPUT_S_MAX: Final = 1.0
"""Time of the processor for one input."""

WARM_UP: Final = 200
"""Inputs before memory counts: modules are imported, and caches are filled."""

INPUT_SIZE_BYTES_MAX: Final = 1 << 20

KEPT_MAX: Final = 5
"""Maximum number of red inputs that are reported in full."""


def input_of(decoder: Decoder, seed: int, number: int) -> bytes:
    """The input with that number."""
    random = Random(f"{decoder.name}/{seed}/{number}")  # noqa: S311 - not for secrets
    return decoder.draw(random)[:INPUT_SIZE_BYTES_MAX]


def run(decoder: Decoder, seed: int, begin: int, count: int, tell: Callable[[int], None]) -> dict[str, object]:
    """Decode inputs of one decoder. `tell` is called with the number of each, before it is decoded.

    The first inputs warm up, and have numbers below 0. They may be red, too. An input that takes too long is the last.
    """
    accepted = refused = red_count = before = 0
    red: list[dict[str, object]] = []
    slowest = 0.0
    for number in chain(range(-WARM_UP, 0), range(begin, begin + count)):
        if number >= 0 and not before:
            before = _peak_bytes()
        data = input_of(decoder, seed, number)
        tell(number)
        began = time.process_time()
        problem, is_accepted = _decode(decoder, data)
        slowest = max(slowest, time.process_time() - began)
        if number >= 0:
            accepted += is_accepted
            refused += not (is_accepted or problem)
        if problem:
            red_count += 1
            if len(red) < KEPT_MAX:
                red.append({"number": number, "problem": problem, "input": data[:200].hex()})
            if problem.startswith(_TooLongError.__name__):
                break
    grown = _peak_bytes() - (before or _peak_bytes())
    if grown > MEMORY_BYTES_MAX:
        red_count += 1
        red.append({"number": begin, "problem": f"memory grew by {grown >> 20} MiB", "input": ""})
    return {
        "accepted": accepted, "refused": refused, "red": red, "red_count": red_count, "grown_bytes": grown,
        "slowest_s": slowest,
    }  # fmt: skip


def _decode(decoder: Decoder, data: bytes) -> tuple[str, bool]:
    """Decode one input. Returns what is wrong, and whether the input was accepted."""
    signal.setitimer(signal.ITIMER_PROF, INPUT_S_MAX)
    try:
        decoder.decode(data)
    except decoder.errors:
        return "", False
    except (Exception, _TooLongError) as exc:
        last = traceback.extract_tb(exc.__traceback__)[-1]
        return f"{type(exc).__name__}: {str(exc)[:150]} ({Path(last.filename).name}:{last.lineno})", False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "", True


class _TooLongError(BaseException):
    """A decoder takes too long. No decoder catches it."""


def _too_long(_signal: int, _frame: object) -> None:
    raise _TooLongError(f"more than {INPUT_S_MAX} s")


def _peak_bytes() -> int:
    """The most memory that this process had. Linux's `ru_maxrss` also counts the parent's, from before `exec`."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


def _limit_addresses() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:  # this system does not report it: the peak is measured all the same
        return
    resource.setrlimit(resource.RLIMIT_AS, (now + ADDRESSES_BYTES_MAX, resource.RLIM_INFINITY))


def decoders_of(module: str) -> dict[str, Decoder]:
    """The decoders in a module."""
    found: dict[str, Decoder] = import_module(module).DECODERS
    return found


PLACE: Final = struct.Struct("<Qq")
"""Which decoder is at work, and the number of its input; -1: it warms up."""


def main(module: str, names: str, seed: int, begin: int, count: int, place: Path) -> list[dict[str, object]]:
    """Decode inputs of some decoders. The one that is being decoded is named in the file at `place`."""
    signal.signal(signal.SIGPROF, _too_long)
    decoders = [decoders_of(module)[name] for name in names.split(",")]
    with place.open("r+b") as file:
        told = mmap.mmap(file.fileno(), PLACE.size)
    _limit_addresses()
    found = []
    for at, decoder in enumerate(decoders):
        PLACE.pack_into(told, 0, at, -1)
        found.append(run(decoder, seed, begin, count, partial(PLACE.pack_into, told, 0, at)))
    return found


if __name__ == "__main__":
    where, which, drawn, first, inputs, told_at = sys.argv[1:]
    print(json.dumps(main(where, which, int(drawn), int(first), int(inputs), Path(told_at))))
