"""Decoders that do what none may do, to see that it is seen."""

from __future__ import annotations

import ctypes

from .child import WARM_UP
from .draws import Decoder, of_seeds

_kept: list[bytes] = []


def _read_memory(data: bytes) -> None:
    ctypes.string_at(len(data) % 2)


def _raise(data: bytes) -> None:
    raise KeyError(len(data))


def _take_memory(_data: bytes) -> None:
    _kept.append(b"x" * (300 << 20) if len(_kept) == WARM_UP else b"")


def _never_end(_data: bytes) -> None:
    while True:
        pass


DECODERS = {
    name: Decoder(name, of_seeds([b"seed"]), decode, (ValueError,))
    for name, decode in {
        "signal": _read_memory,
        "untyped": _raise,
        "memory": _take_memory,
        "endless": _never_end,
    }.items()
}
