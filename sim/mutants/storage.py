# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules of the storage adapter, removed one at a time: worlds whose disks it writes must find each of these mutants.

A broker believes the adapter about what is durable, and about what a start finds. Rule `DISK`: a start finds all
that was durable, and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from seriatim_api.errors import CorruptionError
from seriatim_broker.adapters.rocks.extents import ExtentLog
from seriatim_broker.adapters.rocks.floor import FlushFailedError
from seriatim_broker.adapters.rocks.scan import Scan, Stored, Stretch
from seriatim_broker.adapters.rocks.storage import RocksStorage
from seriatim_broker.adapters.rocks.writer import WriteGroup, Writer
from seriatim_broker.core.values import producers

from .mutation import Mutation, Patch

_LOSS = ("DISK", "I1", "I2", "I5", "I6", "I9", "I10", "I12", "TABLE", "COPY", "CORE", "GAP")


def _reported_before_the_flush() -> list[Patch]:
    real = Writer._flush

    def flush(self: Writer, ticket: int, sequence: int) -> None:
        """Every other flush is left to the next one."""
        if ticket % 2:
            real(self, ticket, sequence)
        else:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._flushed, ticket)

    return [(Writer, "_flush", flush)]


def _failed_flush_again() -> list[Patch]:
    real = Writer._flush

    def flush(self: Writer, ticket: int, sequence: int) -> None:
        """It failed once; the second time it will do."""
        with contextlib.suppress(FlushFailedError):
            self._floor.database.flush_wal()
        real(self, ticket, sequence)

    return [(Writer, "_flush", flush)]


def _older(window: Any) -> Any:
    """The window before its newest batch, if it had one."""
    older = producers.entries_of(window)[:-1]
    return producers.pack_window(older) if older else window


def _window_later() -> list[Patch]:
    def set_window(self: WriteGroup, family: Any, key: bytes, window: Any) -> None:
        """The producer's window is written with the next batch's group, not with its own."""
        self.windows.setdefault(key, (family, _older(window)))

    return [(WriteGroup, "set_window", set_window)]


def _cut_in_memory() -> list[Patch]:
    real = RocksStorage._cut

    def cut(self: RocksStorage, group: WriteGroup, partition: int, segment: int, log: ExtentLog, length: int) -> None:
        """What is cut off is forgotten here, and stays on the disk."""
        real(self, WriteGroup(), partition, segment, log, length)

    return [(RocksStorage, "_cut", cut)]


def _damage_is_the_end() -> list[Patch]:
    real_read = Scan.read

    def read(self: Scan, stretches: Sequence[Stretch], max_bytes: int) -> list[Stored]:
        """What cannot be read is not there."""
        try:
            return real_read(self, stretches, max_bytes)
        except CorruptionError:
            return []

    return [(Scan, "read", read)]


MUTATIONS: dict[str, Mutation] = {
    "storage-reports-early": Mutation("a write is reported only once it is flushed", _reported_before_the_flush, _LOSS),
    "storage-flushes-again": Mutation(
        "a flush that failed ends the process", _failed_flush_again, _LOSS, "failing-disks"
    ),
    "storage-window-later": Mutation("a batch and its producer table are one write", _window_later, _LOSS),
    "storage-cut-in-memory": Mutation("a cut is durable", _cut_in_memory, _LOSS),
    "storage-damage-is-end": Mutation(
        "damage is not the end of the log", _damage_is_the_end, (*_LOSS, "I13"), "damage"
    ),
}
MUTATIONS = {
    name: Mutation(m.rule, m.patches, m.breaks, m.profile, "disks", "storage") for name, m in MUTATIONS.items()
}
