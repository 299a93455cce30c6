"""The runner of the transcripts in `transcripts/*.txt`; `transcripts/README.md` explains their format.

A transcript has events of one core, and below each event the effects that came out of it. The runner carries out the
events on a bench of `support`, and rewrites the effects. A test compares the two texts.
"""

from __future__ import annotations

import enum
import re
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

from seriatim_api.ids import INDEX_MAX, MemberId, RunId, format_offset
from seriatim_broker.core.values import chain as chains
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain, Seal
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.keyed import SETTINGS_DEFAULT
from seriatim_broker.core.values.log import Batch, CursorState, PutBatch, RecoveredPartition
from seriatim_broker.core.values.producers import NO_TABLE, ProducerTable, Table
from seriatim_broker.core.values.segment import Segment

from . import support
from .support import GROUP, GROUPS, SECOND, TOPIC, Bench, P, Serving

WIDTH = 118
INDENT = "    "
WALL_MS = 1_700_000_000_000  # the bench's wall clock begins here
MEMBERS = {member.broker: member for _, members in GROUPS for member in members}
ENUMS = {item.name: item for kind in (ev.WriteOutcome, ev.StartPosition, ev.AckLevel) for item in kind}
WORDS: dict[str, object] = {"yes": True, "no": False, "none": None}
UNITS = {"ms": 1_000, "s": SECOND, "h": 3_600 * SECOND}
ECHOED = ("switch_attempt", "serial", "server_epoch", "settle", "switch")
"""Fields that an answer repeats from the question."""
LEFT_OUT = {
    "checksum", "delivery_attempt", "digest", "partition", "request", "sealed_bytes", "sealed_checksum", "serial",
    "settle", "switch", "switch_attempt", "tail_checksum", "topic", "window", "windows",
}  # fmt: skip
"""Fields that no transcript shows: ids, checksums, and what is the same in all lines."""
LEFT_OUT_OF_SEGMENTS = {"append_floor_ms", "broker_group", "master_run", "no", "opened_at_ms", "sealed_at_ms", "state"}
BEATS = (msg.Heartbeat, msg.HeartbeatAnswer, msg.LaneProbe)
BENCH_VERBS = (
    "ack", "append", "confirm_replications", "follow", "join", "open", "persist", "prepare", "reads", "unlink",
    "written",
)  # fmt: skip
"""Verbs that are methods of `Bench` or `Serving`."""


def seal(chain: Chain, counts: tuple[int, ...] = (), sequence: int = 0, **options: Any) -> Chain:
    """The record after a switch that sealed the open segment with these batches."""
    batches = support.batches_of(chain.open_segment.no, counts, sequence=sequence)
    return support.sealed_chain(chain, sum(counts), support.checksum_of(batches), **options)


def settle(chain: Chain, no: int, length: int, server: MemberId, eligible: tuple[MemberId, ...]) -> Chain:
    """The record after an UNSETTLED segment got a length."""
    return chains.settle(chain, no, Seal(length, 0, server, eligible, None, (), 0))


def add_copies(chain: Chain, nos: tuple[int, ...], members: tuple[MemberId, ...], *, eligible: bool = True) -> Chain:
    """The record after these members have copied these segments."""
    for no in nos:
        for member in members:
            chain = chains.add_copy(chain, no, member)
            chain = chains.add_eligible(chain, no, member) if eligible else chain
    return chain


RECORDS: dict[str, Callable[..., Chain]] = {
    "create": support.first_chain,
    "seal": seal,
    "unsettle": support.unsettled_chain,
    "settle": settle,
    "lose": chains.declare_lost,
    "serve": chains.change_server,
    "add_copies": add_copies,
    "edit": replace,
}
"""What makes a chain record."""


class Transcript:
    """One transcript while it runs."""

    def __init__(self) -> None:
        self.bench: Any = None
        self.records: dict[str, Chain] = {}
        self.found: dict[str, list[Any]] = {}

    def run(self, text: str) -> str:
        """The transcript with the effects that come out now."""
        lines: list[str] = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith(INDENT):
                continue
            lines.append(line)
            if not line or line.startswith("#"):
                continue
            before, count = self.bench, len(self.bench.effects) if self.bench is not None else 0
            try:
                self._step(line.removeprefix("given "))
            except Exception as error:
                error.add_note(f"in line {number}: {line}")
                raise
            if not line.startswith("given ") and self.bench is not None:
                seen = self.bench.effects[count if self.bench is before else 0 :]
                lines += [shown for effect in seen for shown in self._lines(effect)]
        return "\n".join(lines) + "\n"

    # ---- events ----

    def _step(self, line: str) -> None:
        name, *words = line.split()
        if words[:1] == ["="]:
            self.records[name] = self._record(words[1], words[2:])
        elif name.endswith(":"):
            member = self._value(name[:-1])
            self.bench.hear(member, self._filled(getattr(msg, words[0]), words[1:], member))
        elif name[0].isupper():
            self.bench.do(self._filled(getattr(ev, name), words))
        else:
            positional, named = self._arguments(words)
            own = getattr(self, f"on_{name}", None)
            if own is None and name not in BENCH_VERBS:
                raise ValueError(f"there is no verb {name}")
            (own or getattr(self.bench, name))(*positional, **named)

    def _record(self, maker: str, words: list[str]) -> Chain:
        positional, named = self._arguments(words)
        if maker == "seal_appended":  # at the end of all that this broker has appended
            header = self.bench.writes(PutBatch)[-1].batch.header
            return support.sealed_chain(positional[0], header.end_index, header.checksum, **named)
        return RECORDS[maker](*positional, **named)

    def _arguments(self, words: list[str]) -> tuple[list[Any], dict[str, Any]]:
        positional = [self._value(word) for word in words if "=" not in word]
        named = dict(word.split("=", 1) for word in words if "=" in word)
        return positional, {key: self._value(word) for key, word in named.items()}

    def _value(self, word: str) -> Any:
        if "," in word:
            return tuple(self._value(part) for part in word.split(",") if part)
        for known in (self.records, MEMBERS, ENUMS, WORDS):
            if word in known:
                return known[word]
        if word.endswith("'"):
            return MemberId(word[:-1], "another disk")
        number = re.fullmatch(r"(-?\d+)(ms|s|h)?", word)
        return int(number[1]) * UNITS.get(number[2], 1) if number else word

    def _filled(self, kind: type[Any], words: list[str], sender: MemberId | None = None) -> Any:
        """An event or message: what the line does not give is repeated from the question, or empty."""
        _, given = self._arguments(words)
        for field in fields(kind):
            if field.name in given and field.type == "tuple[Batch, ...]":
                given[field.name] = support.batches_of(given["segment_no"], given[field.name])
            elif field.name not in given and field.default is MISSING:
                given[field.name] = self._left_open(str(field.type), field.name, sender, given)
        return kind(**given)

    def _left_open(self, kind: str, name: str, sender: MemberId | None, given: dict[str, Any]) -> Any:
        if name == "partition":
            return P
        if sender is not None and name in ECHOED:
            for sent in reversed(self.bench.sent(object, sender)):
                if hasattr(sent, name):
                    return getattr(sent, name)
        if name == "switch_attempt":
            return support.attempt(given["segment_no"])
        empty = {"bytes": b"-" * 16, "bool": False, "str": "", "Table": NO_TABLE}
        return empty.get(kind, () if kind.startswith("tuple") else None if kind.endswith("None") else 0)

    # ---- verbs ----

    def on_log(self, no: int, counts: tuple[int, ...] = (), *, sequence: int = 0, **options: Any) -> None:
        """The disk has a segment with these batches."""
        batches = support.batches_of(no, counts, sequence=sequence)
        self.found.setdefault("segments", []).append(support.recovered(no, batches, **options))

    def on_prepared(self, no: int, members: tuple[MemberId, ...], *, flush: bool = True, **options: Any) -> None:
        """The disk has a preparation."""
        preparation = replace(support.prepared(no, members, **options), flush=flush)
        self.found.setdefault("preparations", []).append(preparation)

    def on_broker(
        self,
        member: MemberId,
        run: int = 1,
        *,
        chain: Chain | None = None,
        second_member_us: int | None = None,
        **options: Any,
    ) -> None:
        """A member run of a broker starts, with the disk that the lines before describe."""
        if second_member_us is not None:
            options["config"] = BrokerConfig(second_member_us=second_member_us)
        parts: dict[str, Any] = {part: tuple(values) for part, values in self.found.items()}
        found = RecoveredPartition(P, **parts, chain=chain)
        self.bench = Bench(member, run, (found,) if self.found or chain else (), **options)
        self.found = {}

    def on_master(self, **options: Any) -> None:
        """The master of the open segment 1, with its follower in step."""
        self.bench = support.opened_master(**options)

    def on_slave(self, **options: Any) -> None:
        """The follower of the open segment 1, linked to its master."""
        self.bench = support.opened_slave(**options)

    def on_serving(self, *, control_record: tuple[int, ...] = (), **options: Any) -> None:
        """A member that has all of segment 1, which is sealed. The chain record is called `sealed`."""
        if control_record:
            no, epoch, acked, reserved = control_record
            options["cursors"] = (CursorState(no, GROUP, epoch, acked, reserved, settings=SETTINGS_DEFAULT),)
        self.bench = Serving(**options)
        self.records["sealed"] = self.bench.chain

    def on_begun(self) -> None:
        """The consumer has been given all of the segment."""
        self.bench.begin()
        self.bench.deliver()

    def on_link(self, *members: MemberId) -> None:
        """Connections to these members come up, one after the other."""
        for member in members:
            self.bench.link(member)

    def on_wait(self, us: int, *beating: MemberId) -> None:
        """Time passes. The `beating` members answer each heartbeat at once."""
        self.bench.wait(us, beating)

    def on_clock(self, us: int) -> None:
        """The wall clock jumps."""
        self.bench.wall_jump_ms += us // 1_000

    def on_read_chain(self, chain: Chain | None, revision: int | None = None) -> None:
        """The coordinator answers a read of the record."""
        if revision is None:
            self.bench.read_chain(chain)
        else:
            self.bench.do(ev.ChainRead(P, chain, revision))

    def on_read_cursor(
        self, no: int | None, revision: int = 5, *, epoch: int = 1, start: int = 0, known_revision: int = 0
    ) -> None:
        """The coordinator answers a read of the consumer group's cursor."""
        record = ev.CursorRecord(no, epoch, start, TOPIC) if no is not None else None
        self.bench.do(ev.CursorRead(P, GROUP, record, revision, known_revision=known_revision))

    def on_cursor_written(self, outcome: ev.WriteOutcome, revision: int = 0) -> None:
        """The coordinator answers the last write of the cursor."""
        write = self.bench.all(fx.WriteCursor)[-1]
        self.bench.do(ev.CursorWritten(P, GROUP, write.serial, outcome, revision))

    def on_log_read(self, no: int, counts: tuple[int, ...], *, sequence: int = 0, from_index: int = 0) -> None:
        """The disk answers the last read: of these batches of the segment, it gives those from an index on."""
        read = self.bench.all(fx.ReadLog)[-1]
        batches = support.batches_of(no, counts, sequence=sequence)
        self.bench.do(ev.LogRead(read.serial, tuple(b for b in batches if b.header.base_index >= from_index)))

    def on_table(self, sender: MemberId, no: int, sequence: int) -> None:
        """A member sends a producer table with one batch of this sequence."""
        table = ProducerTable()
        table.record(support.batches_of(no, (1,), sequence=sequence)[0].header)
        self.bench.hear(sender, msg.TableAnswer(P, no, table.at_rest()))

    def on_directory(self, **groups: tuple[MemberId, ...]) -> None:
        """The directory of brokers was read; a broker group that the line does not name is as before."""
        self.bench.do(ev.DirectoryChanged(tuple({**dict(GROUPS), **groups}.items())))

    # ---- effects ----

    def _lines(self, effect: fx.Effect) -> list[str]:
        if isinstance(effect, fx.Persist):
            shown = [f"disk  {self._text(write)}" for write in effect.writes]
        elif isinstance(effect, fx.Send):
            hidden = isinstance(effect.message, BEATS)
            shown = [] if hidden else [f"to {effect.broker}  {self._text(effect.message)}"]
        elif isinstance(effect, fx.Deliver):
            shown = [f"to consumer {effect.subscription}  {self._text(effect.event)}"]
        elif isinstance(effect, fx.Note):
            told = (f"{name}={self._nested(value)}" for name, value in effect.fields)
            shown = [" ".join((f"note  {effect.name}", *told))]
        else:
            shown = [self._text(effect)]
        if isinstance(effect, fx.WriteChain):
            self.records["written"] = effect.chain
        wrap = {"width": WIDTH, "initial_indent": INDENT, "subsequent_indent": 2 * INDENT}
        return [
            line
            for one in shown
            for line in textwrap.wrap(one, break_long_words=False, break_on_hyphens=False, **wrap)  # type: ignore[arg-type]
        ]

    def _text(self, value: Any) -> str:
        return " ".join((type(value).__name__, *self._fields(value)))

    def _fields(self, value: Any) -> list[str]:
        left_out = LEFT_OUT | (LEFT_OUT_OF_SEGMENTS if isinstance(value, Segment) else {"token"})
        shown = {
            field.name: getattr(value, field.name)
            for field in fields(value)
            if field.name not in left_out and not _is_empty(getattr(value, field.name), field.default)
        }
        if len(shown) == 1 and is_dataclass(only := next(iter(shown.values()))) and _is_spelled_out(only):
            return self._fields(only)
        return [name if item is True else f"{name}={self._named(name, item)}" for name, item in shown.items()]

    def _named(self, name: str, value: Any) -> str:
        if name == "offset":
            return format_offset(value)
        if name.endswith("_ms") and value >= WALL_MS:
            return f"+{value - WALL_MS}"
        return self._nested(value)

    def _nested(self, value: Any) -> str:
        if isinstance(value, Chain):
            return next((name for name, record in self.records.items() if value == record), None) or self._changed(
                value
            )
        if isinstance(value, Segment):
            return f"({' '.join((str(value.no), value.state.value, *self._fields(value)))})"
        if isinstance(value, Batch):
            return f"[{value.header.base_index},{value.header.end_index})+{len(value.body)}B"
        if isinstance(value, Table):
            return f"{value.row_count}_producers"
        if isinstance(value, MemberId):
            return value.broker if value in MEMBERS.values() else f"{value.broker}'"
        if isinstance(value, RunId):
            return f"{self._nested(value.member)}#{value.run}"
        if isinstance(value, enum.Enum):
            return value.name.lower()
        if isinstance(value, bytes):
            return f"{len(value)}B"
        if isinstance(value, BaseException):
            return type(value).__name__
        if is_dataclass(value):
            return f"({' '.join(self._fields(value))})"
        if isinstance(value, tuple):
            return ",".join(map(self._nested, value))
        if value == INDEX_MAX:
            return "max"
        return str(value)

    def _changed(self, chain: Chain) -> str:
        """A record without a name: the segments that differ from the newest record with a name."""
        newest = max((record for record in self.records.values()), key=lambda record: record.epoch, default=None)
        segments = " ".join(map(self._nested, chain.changes_since(newest).changed))
        return f"(epoch={chain.epoch} {segments})"


def _is_empty(value: Any, default: Any) -> bool:
    return value is None or value is False or value in ("", b"", (), NO_TABLE, SETTINGS_DEFAULT) or value == default


def _is_spelled_out(value: Any) -> bool:
    return not isinstance(value, (Chain, MemberId, RunId, Table))
