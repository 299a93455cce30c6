"""A server of a consumer group in which order is by key, for tests of the core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from seriatim_api.ids import MemberId, make_offset, split_offset
from seriatim_broker.core.consumers.cursors.consumer_group import keyed_of
from seriatim_broker.core.state.consumers import KeyedServed
from seriatim_broker.core.state.keyed.dispatcher import KeyedDispatcher
from seriatim_broker.core.state.keyed.key import RECORD_BYTES, Key
from seriatim_broker.core.state.keyed.rows import dispatcher_of, read_some
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.keyed import (
    ConsumerMode,
    Exhausted,
    KeyColumn,
    KeyGrant,
    KeyPhase,
    RetryPolicy,
)
from seriatim_broker.core.values.log import NO_HAND_OVER, CursorState, HandOverId, LedgerRow

from .support import GROUP, M00, M01, MS, STREAM, TOPIC, P, Serving

QUICK = RetryPolicy(3, delays_ms=(100, 10_000), jitter_percent=0, exhausted=Exhausted.PARK_KEY, grant_ms=60_000)


class KeyedServing(Serving):
    """Segment 1 is sealed; a letter of `keys` is a message's key (a point: none, an underscore: the empty one)."""

    keys_read_max = 1_000
    """How many keys the disk gives at once."""

    fits = 0
    """How many messages fit into a frame; 0: all."""

    def __init__(
        self,
        keys: str = "abcab",
        member: MemberId = M00,
        policy: RetryPolicy = QUICK,
        cursors: tuple[CursorState, ...] = (),
        rows: tuple[LedgerRow, ...] = (),
        handoff: HandOverId = NO_HAND_OVER,
        mode: ConsumerMode = ConsumerMode.KEY_ORDERED,
        *,
        at_most_once: bool = False,
    ) -> None:
        self.keys = [None if letter == "." else letter.replace("_", "").encode() for letter in keys]
        self.policy = policy
        self.handoff = handoff
        self.mode = mode
        self.at_most_once = at_most_once
        super().__init__(member, counts=(1,) * len(keys), cursors=cursors)
        for row in rows:
            self.part.ledger_rows = {row.consumer_group: {**self.part.ledger_rows.get(GROUP, {}), row.name: row.value}}

    @property
    def served(self) -> KeyedServed:
        """The consumer group, for functions of the core that a test calls itself."""
        served = keyed_of(self.part, GROUP)
        assert served is not None
        return served

    def do(self, event: ev.Event) -> list[fx.Effect]:
        """Take a step. The counts of keys, which are kept with each change, are those that a look at each key gives."""
        effects = super().do(event)
        group = self.part.consumer_groups.get(GROUP)
        if group is not None and isinstance(group.served, KeyedServed):
            keyed = group.served.keyed
            found = Counter(key.phase for key in keyed.line.keys.values() if key.phase is not None and not key.token)
            assert [found[phase] for phase in KeyPhase] == [keyed.line.phase_counts[phase] for phase in KeyPhase]
            assert keyed.lists.message_count == sum(len(key.aside) for key in keyed.line.keys.values())
            delayed, lists = (
                [key.name for key in keyed.line.keys.values() if is_so(key)] for is_so in (is_delayed, has_list)
            )
            assert (keyed.line.delayed_count, keyed.lists.key_count) == (len(delayed), len(lists))
            assert keyed.line.waiting_bytes == sum(len(name) + RECORD_BYTES for name in (*delayed, *lists, *lists))
            assert len(keyed.line.delayed) >= keyed.line.delayed_count
            for key in keyed.line.keys.values():  # its state is that of its first message, in one place
                assert not (key.live and key.aside), "only the list keeps the order of a key that has one"
                assert key.phase is not None or not (key.attempts or key.ready_at_ms or key.error)
                is_short = key.ready_us <= self.now_us + self.config.retry_us_max
                assert is_short or (key.phase is KeyPhase.RETRY and key.attempts), "a key that is delayed is listed so"
                assert (key.name in keyed.forwarder.waiting) == (key.phase is KeyPhase.FORWARDING)
        return effects

    def join(
        self,
        subscription: int = 1,
        name: str = "",
        stream: int = STREAM,
        was_active: bool = False,
        *,
        on_demand: bool = False,
    ) -> None:
        """A consumer asks for the partition, in the mode of the consumer group."""
        name = name or f"consumer-{subscription}"
        join = ev.ConsumerJoin(stream, subscription, P, GROUP, name, ev.StartPosition.EARLIEST, was_active)
        self.do(replace(join, mode=self.mode, on_demand=on_demand))

    def cursor(self, no: int = 1, epoch: int = 1, start: int = 0, revision: int = 5) -> None:
        """The coordinator says where the group is, by a read that has just begun."""
        record = ev.CursorRecord(
            no, epoch, start, TOPIC, mode=self.mode, retry=self.policy, handoff=self.handoff,
            at_most_once=self.at_most_once,
        )  # fmt: skip
        group = self.part.consumer_groups.get(GROUP)
        known_revision = group.read_from if group is not None else 0
        self.do(ev.CursorRead(P, GROUP, record, revision, known_revision=known_revision))

    def reads(self) -> None:
        """The disk answers what it was asked."""
        for keys in self.all(fx.ReadKeys):
            if keys.serial not in self.answered:
                self.answered.add(keys.serial)
                columns = tuple(
                    KeyColumn(batch.header, (self.keys[batch.header.base_index],))
                    for batch in self.batches
                    if keys.from_index <= batch.header.base_index < keys.until_index
                )
                self.do(ev.KeysRead(keys.serial, columns[: self.keys_read_max]))
        for rows in self.all(fx.ReadRows):
            if rows.serial not in self.answered:
                self.answered.add(rows.serial)
                count = min(self.fits, len(rows.offsets)) if self.fits else None
                self.do(ev.RowsRead(rows.serial, b"body", count=count))

    def confirm_replications(self, member: MemberId = M01) -> None:
        """The other member has all control records that were sent to it on its disk."""
        for change in self.sent(msg.ReplicateLedger, member):
            if change.serial not in self.answered:
                self.answered.add(change.serial)
                self.hear(member, msg.CursorsReplicated(P, change.segment_no, change.server_epoch, change.serial))
        super().confirm_replications(member)

    def deliver(self, us: int = 60 * MS) -> None:
        """All that may be granted is, and what changed is durable on both members."""
        for _ in range(4):
            self.reads()
            self.persist()
            self.confirm_replications()
            self.wait(us // 4, (M01,))

    def serve(self) -> None:
        """One consumer has joined, and was granted all that can be. The next server does not take a handoff."""
        self.begin()
        self.keyed.handoff.rests_until_us = 1 << 60
        self.deliver()

    # ---- what was granted ----

    def runs(self) -> list[KeyGrant]:
        """The grants since the last look, as the consumers got them."""
        found = [run for event in self.delivered(fx.Granted) for run in event.runs]
        self.effects = [
            effect
            for effect in self.effects
            if not (isinstance(effect, fx.Deliver) and isinstance(effect.event, fx.Granted))
        ]
        return found

    def granted(self) -> list[list[int]]:
        """The indexes of the grants since the last look."""
        return [indexes_of(run) for run in self.runs()]

    def acks(self, run: KeyGrant, *, upto: int | None = None, number: int = 1, subscription: int = 1) -> None:
        """The consumer acknowledges the first messages of a grant."""
        offsets = run.offsets[: upto or len(run.offsets)]
        self.do(ev.ConsumerAcks(STREAM, subscription, number, (run.token,) * len(offsets), offsets))

    def nack(self, run: KeyGrant, at: int = 0, delay_ms: int | None = None, *, is_last: bool = False) -> None:
        """The consumer fails on a message of a grant."""
        self.do(ev.ConsumerNack(STREAM, 1, run.token, run.offsets[at], delay_ms, "no", is_last))

    def void(self) -> list[int]:
        """The tokens that consumers were given are void."""
        return [token for event in self.delivered(fx.TokensVoid) for token in event.tokens]

    def rows(self) -> dict[bytes, bytes]:
        """The rows of the ledger on this disk."""
        return dict(self.part.ledger_rows.get(GROUP, {}))


def is_delayed(key: Key) -> bool:
    """Whether the key waits for a time."""
    return key.is_delayed


def has_list(key: Key) -> bool:
    """Whether messages of the key are set aside."""
    return bool(key.aside)


def indexes_of(run: KeyGrant) -> list[int]:
    """The indexes of a grant, all of segment 1."""
    assert all(split_offset(offset)[0] == 1 for offset in run.offsets)
    return [split_offset(offset)[1] for offset in run.offsets]


def offsets(indexes: Sequence[int], no: int = 1) -> tuple[int, ...]:
    """Offsets in a segment."""
    return tuple(make_offset(no, index) for index in indexes)


def dispatcher_with(segment_no: int, floor: int, rows: Mapping[bytes, bytes], now: ev.Moment) -> KeyedDispatcher:
    """A dispatcher that has read all rows."""
    dispatcher = dispatcher_of(segment_no, floor, rows.items())
    assert read_some(dispatcher, len(rows), now)
    dispatcher.handoff.frozen = None
    return dispatcher
