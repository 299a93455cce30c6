# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules of producer tables: what they keep of idle producers and how long, and how a large table travels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seriatim_broker.core.state import segment_log
from seriatim_broker.core.switching import idle_blocks
from seriatim_broker.core.values import producers
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.states import NOTHING
from seriatim_broker.rpc import codec, peer_frames

from .mutation import LOSS, Mutation, Patch


def _forgotten_early() -> list[Patch]:
    """A producer is forgotten as soon as it is idle, and not when it is expired."""
    real = producers.ProducerTable.tidy

    def tidy(self: Any, config: BrokerConfig, *arguments: Any, **options: Any) -> tuple[bytes, ...]:
        soon = replace(config, producer_expiry_ms=config.producer_idle_ms, producer_evict_ms=config.producer_idle_ms)
        return real(self, soon, *arguments, **options)

    return [(producers.ProducerTable, "tidy", tidy)]


def _row_hides_window() -> list[Patch]:
    """The block is believed about a producer that came back."""

    def window(self: Any, producer: bytes) -> bytes | None:
        for block in reversed(self.blocks):
            at = block.find(producer)
            if at >= 0:
                found: bytes = block.window(at)
                return found
        found_live: bytes | None = self.windows.get(producer)
        return found_live

    return [(producers.ProducerTable, "window", window)]


def _missing_is_empty() -> list[Patch]:
    """A preparation does not wait for blocks that it names: missing blocks count as empty."""
    init: Any = producers.ProducerTable.__init__

    def without_missing(self: Any, table: Any = producers.NO_TABLE, newer: Any = (), blocks: Any = NOTHING) -> None:
        init(self, replace(table, blocks=tuple(name for name in table.blocks if name.id in blocks)), newer, blocks)

    return [
        (producers.ProducerTable, "__init__", without_missing),
        (idle_blocks, "missing", lambda broker, of, table: ()),
    ]


def _unread_is_unknown() -> list[Patch]:
    """A producer whose window a new master has not built yet counts as a new producer."""

    def find(self: producers.Unread, producer: bytes) -> bytes | None:
        return self.read.get(producer)

    return [(producers.Unread, "find", find)]


def _leap_stays() -> list[Patch]:
    """The windows stay where a leap of append time moved them, although the batches behind the leap are cut."""
    return [(segment_log, "leaps", lambda *_: False)]


def _forgets_behind_a_leap() -> list[Patch]:
    """Behind a leap of append time, the table forgets at once, although the leap's batch may be cut."""
    real = producers.ProducerTable.tidy

    def tidy(self: Any, *arguments: Any, may_forget: bool = True) -> tuple[bytes, ...]:
        return real(self, *arguments)

    return [(producers.ProducerTable, "tidy", tidy)]


def _part_missing() -> list[Patch]:
    """A message counts as complete although its last part has not arrived."""
    real = peer_frames.ControlReader._take_part

    def take_part(self: Any, part: bytes, parts_left: int, *, is_piece: bool) -> list[Any]:
        left = 0 if parts_left == 1 else parts_left
        return real(self, part, left, is_piece=is_piece) if parts_left or not self._parts else []

    return [(peer_frames.ControlReader, "_take_part", take_part)]


def _parts_mixed() -> list[Patch]:
    """Parts of all links are kept in one place and not checked: those of two preparations become one."""
    together: list[bytes] = []

    def take_part(self: Any, part: bytes, parts_left: int, **_kind: bool) -> list[Any]:
        together.append(part)
        if parts_left:
            return []
        whole = b"".join(together)
        together.clear()
        return [codec.decode(whole)]

    return [(peer_frames.ControlReader, "_take_part", take_part)]


MUTATIONS: dict[str, Mutation] = {
    "forgotten-early": Mutation(
        "a producer is forgotten only when it has expired",
        _forgotten_early,
        ("TABLE", "GAP", "I9"),
        "idle-producers",
    ),
    "row-hides-window": Mutation(
        "a producer that came back is known by its window, not by its row in a block",
        _row_hides_window,
        ("TABLE", "GAP", "I1", "I9", "CORE"),
        "idle-producers",
    ),
    "unread-is-unknown": Mutation(
        "a new master knows a producer before it has made its window",
        _unread_is_unknown,
        ("TABLE", "GAP", "I1", "I9", "PLACE"),
        "idle-producers",
    ),
    "leap-taken-back": Mutation(
        "with the batches behind a leap of append time, a cut takes back the leap in the producer table",
        _leap_stays,
        ("TABLE", "GAP", "I9"),
        "idle-clocks",
        world="brokers",
        batch_count=100,
    ),
    "leap-committed": Mutation(
        "behind a leap of append time, a producer table forgets only when the leap's batch is committed",
        _forgets_behind_a_leap,
        ("TABLE", "GAP", "I9"),
        "idle-leaps",
    ),
    "part-missing": Mutation(
        "a message in parts is complete only with its last part", _part_missing, ("I13", *LOSS), "tables-in-parts"
    ),
    "parts-mixed": Mutation(
        "a message is put together from the parts of one link only", _parts_mixed, ("I13", *LOSS), "tables-in-parts"
    ),
    "block-missing": Mutation(
        "a preparation is written only with all idle blocks that it names",
        _missing_is_empty,
        ("TABLE", "CORE"),
        "idle-producers",
    ),
}
"""By name."""
