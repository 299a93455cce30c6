# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules of producer tables: what they keep of idle producers and how long, and how a large table travels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seriatim_broker.core.state import segment_log
from seriatim_broker.core.switching import idle_blocks
from seriatim_broker.core.values import producers
from seriatim_broker.core.values.states import NOTHING
from seriatim_broker.core.writing import admission
from seriatim_broker.rpc import codec, peer_frames

from .mutation import LOSS, Mutation, Patch


def _gone_when_appended() -> list[Patch]:
    """A batch counts as committed for the producer table as soon as it is appended."""
    real = producers.ProducerTable.add

    def add(self: Any, header: Any) -> None:
        real(self, header)
        self.fold(1 << 62)

    return [(producers.ProducerTable, "add", add)]


def _admits_all() -> list[Patch]:
    """A new producer comes into a full table, whoever it pushes out."""
    return [(admission, "refusal", lambda *_: None)]


def _silent_before_the_opening() -> list[Patch]:
    """To a new master all producers were silent for ever."""

    def begin(broker: Any, log: Any) -> None:
        log.led_from_us = broker.now.mono_us - (1 << 40)

    return [(admission, "begin", begin)]


def _start_does_not_fold() -> list[Patch]:
    """A start believes that the windows on the disk are all that there are."""
    recovered = segment_log.SegmentLog.recovered.__func__  # type: ignore[attr-defined]

    def forgetful(cls: Any, partition: Any, found: Any, *arguments: Any) -> Any:
        log = recovered(cls, partition, found, *arguments)
        log.live_table.cut(0)
        return log

    return [(segment_log.SegmentLog, "recovered", classmethod(forgetful))]


def _own_limit() -> list[Patch]:
    """A master remembers as many producers as its own settings say, and not as many as the segment's record."""
    real = admission.begin

    def begin(broker: Any, log: Any) -> None:
        real(broker, log)
        log.live_table.limit += 3

    return [(admission, "begin", begin)]


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

    return [(producers.Room, "window", window)]


def _missing_is_empty() -> list[Patch]:
    """A preparation does not wait for blocks that it names: missing blocks count as empty."""
    init: Any = producers.ProducerTable.__init__

    def without_missing(
        self: Any, table: Any = producers.NO_TABLE, newer: Any = (), blocks: Any = NOTHING, *rest: Any, **more: Any
    ) -> None:
        here = replace(table, blocks=tuple(name for name in table.blocks if name.id in blocks))
        init(self, here, newer, blocks, *rest, **more)

    return [
        (producers.ProducerTable, "__init__", without_missing),
        (idle_blocks, "missing", lambda broker, of, table: ()),
    ]


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
    "gone-when-committed": Mutation(
        "a producer is forgotten when the batch that pushes it out is committed",
        _gone_when_appended,
        ("TABLE", "GAP", "I9", *LOSS),
        "idle-producers",
    ),
    "limit-in-the-record": Mutation(
        "how many producers a segment remembers stands in its record",
        _own_limit,
        ("TABLE", "I9"),
        "idle-producers",
    ),
    "protected": Mutation(
        "a new producer pushes out none that was heard lately",
        _admits_all,
        ("TABLE", "I9"),
        "idle-producers",
    ),
    "protected-from-opening": Mutation(
        "to a master, the time before it opened the segment counts as nothing",
        _silent_before_the_opening,
        ("TABLE", "I9"),
        "idle-producers",
    ),
    "start-folds": Mutation(
        "a start takes up the committed batches whose windows are not on the disk yet",
        _start_does_not_fold,
        ("TABLE", "GAP", "I1", "I9"),
        "idle-producers",
    ),
    "row-hides-window": Mutation(
        "a producer that came back is known by its window, not by its row in a block",
        _row_hides_window,
        ("TABLE", "GAP", "I1", "I9", "CORE"),
        "idle-producers",
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
