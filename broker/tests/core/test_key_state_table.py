"""The table of docs/internals/waiting-keys.md: what happens to a key in each state, cell by cell.

Each row of the page is run here, in a server whose consumer is there, and in one that loads the consumer group when a
consumer comes later. If a cell has no row, a test fails. `REWRITE_TABLES=1 pytest` on this file rewrites the rows.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from seriatim_api import errors
from seriatim_api.dead_letters import group_hash
from seriatim_api.ids import format_offset, make_offset
from seriatim_broker.core.consumers.groups.figures import figures_of
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.chain import Chain, declare_lost, trim
from seriatim_broker.core.values.keyed import (
    NOTHING_WANTED,
    ConsumerMode,
    Exhausted,
    KeyOperation,
    KeyPhase,
    SeenKey,
    WantedSettings,
)
from seriatim_broker.core.values.ledger_rows import (
    KeyRecord,
    aside_name,
    key_name,
    write_aside,
    write_forwarder,
    write_key,
)
from seriatim_broker.core.values.log import Batch, LedgerRow, RecoveredPartition
from seriatim_broker.core.values.segment import Start

from .keyed_support import offsets
from .support import (
    GROUP,
    M00,
    M01,
    SECOND,
    STREAM,
    TOPIC,
    Bench,
    P,
    batches_of,
    checksum_of,
    control_record,
    first_chain,
    recovered,
    sealed_chain,
)
from .test_forwarding import POLICY, Forwarding

PAGE = Path(__file__).resolve().parents[3] / "docs" / "internals" / "waiting-keys.md"
YEAR_MS = 365 * 86_400_000
LISTED = offsets([0, 1])
BEGIN, END = "<!-- rows of test_key_state_table.py begin -->\n", "<!-- rows of test_key_state_table.py end -->\n"
HEAD = (
    "| key | what happens | consumers are notified of | then the key's first message is | listed as | lag | alert |\n"
    "|---|---|---|---|---|---|---|\n"
)


class Waiting(Forwarding):
    """A server of segment 2, which is sealed as segment 1 is; both are on this disk, and the ledger has these rows.

    All messages are of key a: 1:0 and 1:1, which are in its list or done, and 2:0 and 2:1.
    """

    def __init__(self, rows: dict[bytes, bytes], *, replayed: bool = False) -> None:
        self.unreadable: set[int] = set()
        self.filling = b""
        self.revision_read, self.noted = 5, 0
        self.policy, self.mode, self.at_most_once = POLICY, ConsumerMode.KEY_ORDERED, False
        self.earlier, self.batches = batches_of(1, (1, 1)), batches_of(2, (1, 1))
        if replayed:
            copies = batches_of(2, (1, 1, 1, 1))[2:]
            self.batches += tuple(_for_group(*pair) for pair in zip(copies, (GROUP, "others"), strict=True))
        self.keys = [b"a"] * len(self.batches)
        self.length = len(self.batches)
        found = tuple(
            recovered(no, batches, commit=len(batches), sealed=True)
            for no, batches in ((1, self.earlier), (2, self.batches))
        )
        cursor = control_record(2, GROUP, 1, 0, 10, 0, LISTED[0] if any(name[:1] == b"a" for name in rows) else 0)
        kept = tuple(LedgerRow(2, GROUP, name, value) for name, value in rows.items())
        Bench.__init__(self, M00, 1, (RecoveredPartition(P, found, cursors=(cursor,), ledger_rows=kept),))
        here, both = M00, (M00, M01)
        chain = sealed_chain(first_chain(), 2, checksum_of(self.earlier), both, server=here, eligible=both)
        self.chain = sealed_chain(chain, self.length, checksum_of(self.batches), server=here, eligible=both)
        self.core.state.config = replace(self.config, handed_grants_max=-1)  # it stays in this segment
        self.answered: set[int] = set()
        self.read_chain(self.chain)

    def cursor(self, no: int = 2, epoch: int = 1, start: int = 0, revision: int = 0) -> None:
        """The coordinator says where the group is."""
        record = ev.CursorRecord(no, epoch, start, TOPIC, mode=self.mode, retry=self.policy, dropped_from=self.noted)
        self.do(ev.CursorRead(P, GROUP, record, revision or self.revision_read))

    @property
    def known(self) -> Chain:
        """The record that it knows."""
        assert self.part.chain is not None
        return self.part.chain

    def learn(self, chain: Chain) -> None:
        """The record has changed."""
        self.chain = chain
        self.read_chain(chain)

    def come(self, when: str, credit: int) -> None:
        """A consumer comes."""
        if when == "left":
            self.join(2, stream=STREAM + 1)
            self.do(ev.ConsumerCredit(STREAM + 1, credit))
            self.read_chain(self.known)
            self.cursor()
        else:
            self.begin(credit=credit)
        self.read_chain(self.known)  # if something is noted, the chain is read once more
        self.cursor()
        self.deliver()

    def listed(self) -> str:
        """What an administrator sees of key a in the list of keys that wait."""
        before = len(self.all(fx.KeysListed))
        self.do(ev.ListKeys(1, P, GROUP, (), b"", 10, None, self.now_us + SECOND))
        self._load()
        (answer,) = self.all(fx.KeysListed)[before:]
        assert answer.error is None
        if not answer.keys:
            return NONE
        (key,) = answer.keys
        words = {KeyPhase.RETRY: "delayed" if key.ready_at_ms > self.wall_ms else "waits for a consumer"}
        state = words.get(key.phase) or key.phase.name.lower()
        assert key.first_offset, "an administrator can act on it"
        return f"{state}, {key.attempts} failed" if key.attempts else state

    def _load(self) -> None:
        """The coordinator answers, if the consumer group was not in memory."""
        self.read_chain(self.known)
        self.cursor()
        self.deliver()

    def operate(self, operation: KeyOperation) -> list[errors.SeriatimError | bool]:
        """An administrator acts on key a, as the list shows it."""
        self.do(ev.ListKeys(2, P, GROUP, (), b"", 10, None, self.now_us + SECOND))
        self._load()
        found = self.all(fx.KeysListed)[-1].keys
        keys = tuple(SeenKey(key.name, key.turn, key.first_offset, key.group_epoch) for key in found)
        self.do(ev.OperateKeys(3, P, GROUP, operation, keys or (SeenKey(b"ka", 0, 0, 1),), self.now_us + SECOND))
        self._load()
        return list(self.all(fx.KeysOperated)[-1].results)

    def move(self, operation: ev.ConsumerGroupOperation, wanted: WantedSettings, *, drop_aside: bool) -> bool:
        """An administrator moves or configures the consumer group. Returns whether that is refused."""
        before = len(self.all(fx.ConsumerGroupOperated))
        event = ev.OperateConsumerGroup(
            4, P, GROUP, operation, b"%d" % self.now_us, 0, 1, 0, 0, self.now_us + SECOND, wanted, drop_aside
        )
        self.do(event)
        self._load()
        return len(self.all(fx.ConsumerGroupOperated)) > before


def _for_group(batch: Batch, group: str) -> Batch:
    """The same batch as a replayed copy for that consumer group."""
    raw = batch.header.raw
    raw = raw[:152] + group_hash(group).to_bytes(8, "little") + raw[160:]
    copy = batch._replace(header=batch.header._replace(raw=raw))
    assert copy.header.for_group == group_hash(group)
    return copy


def _record(
    phase: KeyPhase, attempts: int, *, listed: bool, sequence: int = 0, ready_at_ms: int = 0
) -> dict[bytes, bytes]:
    first, count = (0, len(LISTED)) if listed else (make_offset(2, 0), 0)
    rows = {key_name(b"ka"): write_key(KeyRecord(phase, 0, attempts, ready_at_ms, sequence, first, count, "no"))}
    return {aside_name(b"ka", 0): write_aside(LISTED), **rows} if listed else rows


NONE = "\N{EN DASH}"
FAR_MS = 1_700_000_000_000 + YEAR_MS

STATES: dict[str, dict[bytes, bytes]] = {
    "ready": {},
    "ready, in its list": _record(KeyPhase.RETRY, 0, listed=True),
    "granted": {},
    "granted, in its list": _record(KeyPhase.RETRY, 0, listed=True),
    "delayed": _record(KeyPhase.RETRY, 1, listed=False, ready_at_ms=FAR_MS, sequence=YEAR_MS),
    "delayed, in its list": _record(KeyPhase.RETRY, 1, listed=True, ready_at_ms=FAR_MS, sequence=YEAR_MS),
    "parked": _record(KeyPhase.PARKED, 1, listed=True),
    "forwarding": _record(KeyPhase.FORWARDING, 1, listed=False),
    "forwarding, numbered": {
        **_record(KeyPhase.FORWARDING, 1, listed=True, sequence=1),
        **dict([write_forwarder(2)]),
    },
}
"""The rows of the ledger, by the state of key a. Its first message is 1:0 if it has a list, else 2:0."""

EVENTS = (
    "nothing", "dropped", "lost", "rewound", "skipped", "released", "replayed", "parked", "policy changed",
    "mode changed",
)  # fmt: skip


class Row(NamedTuple):
    """A row of the page: what is seen of key a afterwards."""

    told: str
    next: str
    listed: str
    lag: str
    alert: str


def cannot_happen(state: str, event: str) -> str:
    """Why something cannot happen to a key in a state; empty: it can."""
    if event == "parked" and not state.startswith("granted"):
        return "cannot happen: only a message that is granted can fail"
    return ""


CELLS = [(state, event) for state in STATES for event in EVENTS if not cannot_happen(state, event)]


def _has_list(state: str) -> bool:
    return bool(STATES[state]) and aside_name(b"ka", 0) in STATES[state]


def _happens(bench: Waiting, state: str, event: str) -> None:
    match event:
        case "dropped" if _has_list(state):
            bench.learn(trim(bench.known, 2, None, 1))
        case "dropped":
            bench.learn(trim(bench.known, 2, Start(1, 0, 0), 1))
        case "lost":
            bench.learn(declare_lost(bench.known, 1))
        case "skipped" | "released":
            results = bench.operate(KeyOperation.SKIP if event == "skipped" else KeyOperation.RELEASE)
            is_refused = state in ("granted, in its list", "forwarding, numbered")
            assert [isinstance(result, errors.PreconditionError) for result in results] == [is_refused]
        case "parked":
            run, *_ = bench.runs()
            bench.nack(run)
        case "policy changed":
            bench.policy = replace(POLICY, delays_ms=(1, 1), attempts_max=9)
            bench.revision_read = 9
            if GROUP in bench.part.consumer_groups:
                bench.cursor()
    bench.deliver()


def observed(state: str, event: str, when: str) -> Row:
    """Run a cell. A consumer is here; or it has left, and another one comes later; or the server has restarted."""
    if event == "lost" and not _has_list(state):
        return _lost_with_its_ledger()
    bench = Waiting(STATES[state], replayed=event == "replayed")
    bench.unreadable = {make_offset(2, 0)} if state == "forwarding" else set()
    if event == "parked":
        bench.policy = replace(POLICY, exhausted=Exhausted.PARK_KEY)
    is_granted = state.startswith("granted")
    if when != "restarted":
        bench.come("", 1 << 20 if is_granted else 0)
    if event in ("rewound", "mode changed"):
        return _moved(bench, state, event)
    if when == "left":
        bench.do(ev.ConsumerGone(STREAM))
        bench.deliver()
    held = bench.runs() if is_granted and event != "parked" else []
    _happens(bench, state, event)
    if when != "here":
        if when == "left":
            bench.clear()
        bench.come(when, 0)
    bench.do(ev.ConsumerCredit(STREAM + (when == "left"), 1 << 20))
    bench.deliver()
    gaps = {make_offset(gap.segment_no, gap.from_index) for gap in bench.delivered(fx.Gap)}
    drops = {drop.from_offset for drop in bench.delivered(fx.Dropped)}
    told = [
        f"{what} from {format_offset(offset)}"
        for what, offsets in (("gap", gaps), ("dropped", drops))
        for offset in sorted(offsets)
    ]
    run = next(iter(held or bench.runs()), None)
    figures = figures_of(bench.part, bench.part.consumer_groups[GROUP])
    assert figures is not None
    alerts = ["SeriatimKeysParked"] * bool(figures.parked_keys) + ["SeriatimDeadLettersHeldUp"] * bool(
        figures.forwarding_keys
    )
    return Row(
        ", ".join(told) or NONE,
        NONE if run is None else f"{format_offset(run.offsets[0])}, attempt {run.attempt}",
        bench.listed(),
        str(figures.lag_messages),
        ", ".join(alerts) or NONE,
    )


def _lost_with_its_ledger() -> Row:
    """What a consumer group hears whose segment is lost, with all that was known of its keys."""
    bench = Waiting({})
    bench.read_chain(declare_lost(bench.chain, 2))
    bench.join()
    bench.cursor()
    assert bench.delivered(fx.Gap) == [fx.Gap(2, 0, "declared lost")]
    (write,) = bench.all(fx.WriteCursor)
    assert (write.record.segment_no, write.record.group_epoch) == (3, 2)
    return Row("gap from 2:0", "of the next segment", NONE, "0", NONE)


def _moved(bench: Waiting, state: str, event: str) -> Row:
    """What an administrator gets who moves the consumer group, or gives it another mode: a new group epoch, or an
    error."""
    operation = ev.ConsumerGroupOperation.REWIND
    wanted, is_held = NOTHING_WANTED, state.startswith(("parked", "forwarding"))
    if event == "mode changed":
        operation, wanted = ev.ConsumerGroupOperation.CONFIGURE, WantedSettings(ConsumerMode.SHARED)
        assert bench.move(operation, wanted, drop_aside=True), "a consumer is there"
        bench.do(ev.ConsumerGone(STREAM))
        bench.deliver()
    else:
        assert not is_held or bench.move(operation, wanted, drop_aside=False)
    assert not bench.move(operation, wanted, drop_aside=True)
    record = bench.all(fx.WriteCursor)[-1].record
    assert record.group_epoch == 2
    here = make_offset(record.segment_no, record.start_index)
    lag = 4 - record.start_index - 2 * (record.segment_no == 2)
    return Row(NONE, f"{format_offset(here)}, attempt 1" if lag else "of the next segment", NONE, str(lag), NONE)


def _whens(state: str, event: str) -> tuple[str, ...]:
    if state.startswith("granted") or event in ("rewound", "mode changed"):
        return (
            "here",
        )  # a grant ends with its consumer; an administrator moves a group, whether consumers are there or not
    return ("here", "left") if event in ("skipped", "released") else ("here", "left", "restarted")


def _page_rows() -> dict[tuple[str, str], list[str]]:
    rows = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {(state, event): rest for state, event, *rest in cells}


def test_table_has_a_row_for_each_cell() -> None:
    if os.environ.get("REWRITE_TABLES"):
        rows = [
            (state, event, *([cannot_happen(state, event), *[""] * 4] if (state, event) not in CELLS else here))
            for state in STATES
            for event in EVENTS
            for here in [observed(state, event, "here") if (state, event) in CELLS else ()]
        ]
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        text = "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("  |", " |")
        PAGE.write_text(before + BEGIN + HEAD + text + END + rest.split(END)[1], encoding="utf-8")
    assert list(_page_rows()) == [(state, event) for state in STATES for event in EVENTS]


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_key_in_a_state_when_something_happens(state: str, event: str) -> None:
    row = _page_rows()[state, event]
    assert {when: list(observed(state, event, when)) for when in _whens(state, event)} == dict.fromkeys(
        _whens(state, event), row
    )


@pytest.mark.parametrize("state", [state for state in STATES if cannot_happen(state, "parked")])
def test_failure_without_a_grant_changes_nothing(state: str) -> None:
    assert _page_rows()[state, "parked"][0] == cannot_happen(state, "parked")
    bench = Waiting(STATES[state])
    bench.come("here", 0)
    before = bench.rows()
    first = bench.keyed.first_offset(bench.keyed.grants.weigh(b"ka"))
    bench.do(ev.ConsumerNack(STREAM, 1, 1 << 41, first, 0, "no", True))
    bench.deliver()
    assert bench.void() == [1 << 41]
    assert bench.rows() == before


def test_loss_that_a_server_has_not_heard_of_is_read_first() -> None:
    """Rule `note-reads-chain`: another broker knew that segment 1 was lost, and moved the cursor to segment 2."""
    bench = Waiting({})
    bench.noted = make_offset(1, 0)
    bench.begin()
    bench.deliver()
    assert bench.runs() == [], "it grants nothing before it has read why messages are gone"
    bench.learn(declare_lost(bench.known, 1))
    bench.cursor()
    bench.deliver()
    assert bench.delivered(fx.Gap) == [fx.Gap(1, 0, "declared lost")]
    (run,) = bench.runs()
    assert run.offsets[0] == make_offset(2, 0)


@pytest.mark.parametrize("mode", [ConsumerMode.KEY_ORDERED, ConsumerMode.EXCLUSIVE])
def test_cursor_that_leaves_a_lost_segment_says_so(mode: ConsumerMode) -> None:
    bench = Waiting({})
    bench.mode = mode
    bench.read_chain(declare_lost(bench.chain, 2))
    bench.do(ev.ResolveConsumer(6, P, GROUP, None, ev.StartPosition.EARLIEST, bench.now_us + SECOND, mode=mode))
    bench.read_chain(bench.known)
    bench.cursor()
    (write,) = bench.all(fx.WriteCursor)
    assert write.record.dropped_from == make_offset(2, 0)
