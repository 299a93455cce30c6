"""Outcomes of messages that were granted key by key: consumers acknowledge, fail, extend, leave, or are silent.

Everything names a token and an offset, and counts only if exactly that is granted to that consumer at this moment.

Rule `token-and-offset` (I4, J3): an acknowledgement counts under the token of the grant that gave the message, and for
that message only. Without it:
  1. k:5 is granted to c1, under token 7. Its deadline passes, and it is granted to c2 under token 8.
  2. c2 fails on it. c1, which was slow, acknowledges k:5 under token 7.
  3. k:5 is passed, although its only valid grant has failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from seriatim_api import errors
from seriatim_api.ids import make_offset
from seriatim_api.key_names import name_to_text

from ...state.broker import BrokerState
from ...state.consumers import KeyedServed, Seat
from ...state.dispatcher import Consumer
from ...state.keyed.dispatcher import KeyedDispatcher
from ...state.keyed.grants import Grant
from ...state.keyed.key import Key
from ...values.effects import Joined, KeepMessage, Revoked, TokensVoid
from ...values.events import ConsumerAcks, ConsumerDemand, ConsumerExtend, ConsumerNack
from ...values.keyed import Exhausted
from ..cursors import control_records
from ..cursors.consumer_group import tell
from . import dead_letters, grants

FROZEN_MAX = 10_000
"""Maximum number of requests of consumers that wait for the end of a handoff."""

FROZEN_ROWS_MAX = 500_000
"""Maximum number of rows that are in them. A row takes about 80 bytes of memory."""

CLAIM_US = 2_000_000
"""A consumer that joined has this long to say something of the grants that were handed over for its name."""

GRANT_MS_MAX = 86_400_000
"""A grant cannot be extended to more than a day from now."""


def join(served: KeyedServed, consumer: Consumer) -> None:
    """Tell a consumer that it is one of those to which messages are granted."""
    consumer_group, cursor = served.group, served.cursor
    claim(served, consumer)
    consumer.grant_ms = cursor.retry.grant_ms
    consumer.reported_gaps = ()
    joined = Joined(
        True, consumer_group.segment_no, served.ledger.acked, 0, consumer_group.group_epoch,
        served.server_epoch, cursor.paused, cursor.begun_by, cursor.mode, cursor.retry.grant_ms,
        cursor.at_most_once,
    )  # fmt: skip
    tell(served.broker, consumer, joined)


def claim(served: KeyedServed, consumer: Consumer) -> None:
    """The grants that were handed over for the name of a consumer are its own."""
    served.keyed.attach(consumer, served.broker.now.mono_us + CLAIM_US)


def _grant_of(keyed: KeyedDispatcher, consumer: Consumer, token: int) -> Grant | None:
    grant = keyed.grants.find(token)
    return grant if grant is not None and grant.consumer is consumer and grant.is_given else None


def _grant_at(keyed: KeyedDispatcher, consumer: Consumer, token: int, offset: int) -> Grant | None:
    """The grant with that token, if the consumer has it, and the message at `offset` is its next one.

    In an at-most-once group any offset will do: the messages are acknowledged already.
    """
    grant = _grant_of(keyed, consumer, token)
    return grant if grant is not None and (grant.is_passed or grant.offsets[grant.done] == offset) else None


def _waits(served: KeyedServed, consumer: Consumer, event: ConsumerAcks | ConsumerNack | ConsumerExtend) -> bool:
    """Whether what a consumer sent waits until the handoff is over.

    Rule `frozen-waits` (J2): nothing changes while the state of the keys is handed over. Without it:
      1. The state is sent to the next server. k:5 is granted in it.
      2. c1 acknowledges k:5, which is confirmed here. The cursor moves.
      3. The next server grants k:5 again.

    If too much waits, the consumer is ended, and joins again. Nothing of what it sent counts then, or is confirmed.
    Without it (J2):
      1. So much waits that an acknowledgement is dropped, as if it were lost on its way.
      2. The consumer group continues. The consumer's next request is confirmed, and with it all before it.
      3. The message of the first one comes again, although its acknowledgement was confirmed.
    """
    keyed = served.keyed
    assert keyed.handoff.frozen is not None
    rows = 1 if isinstance(event, ConsumerNack) else len(event.tokens)
    rows += len(event.started) if isinstance(event, ConsumerAcks) else 0
    if len(keyed.handoff.frozen) < FROZEN_MAX and keyed.handoff.frozen_rows + rows <= FROZEN_ROWS_MAX:
        keyed.handoff.keep(event, rows)
        return True
    text = f"{len(keyed.handoff.frozen)} requests wait until the keys of group {served.group.name} are handed over"
    tell(served.broker, consumer, Revoked(errors.OverloadedError(f"{text}: join again", retry_after_ms=200)))
    served.group.consumers.remove(consumer)  # `thaw` ends its grants
    return True


def thaw(served: KeyedServed) -> None:
    """The grants continue: take what consumers sent meanwhile, and end the grants of those that left."""
    keyed = served.keyed
    if keyed.handoff.frozen is None:
        return
    consumers = {(consumer.stream, consumer.subscription): consumer for consumer in served.group.consumers}
    for event in keyed.handoff.thaw():
        consumer = consumers.get((event.stream, event.subscription))
        if consumer is None:
            continue  # it has left
        if isinstance(event, ConsumerAcks):
            on_acks(served, consumer, event)
        elif isinstance(event, ConsumerNack):
            on_nack(served, consumer, event)
        else:
            on_extend(served, consumer, event)
    gone = [one for one in keyed.grants.holders if not one.is_absent and one not in served.group.consumers]
    if gone:
        for grant in keyed.grants.of(gone):
            end_grant(served, grant, f"{grant.consumer.name} has ended")
    control_records.after_passing(served)
    grants.go_on(served)


def on_acks(served: Seat, consumer: Consumer, event: ConsumerAcks) -> None:
    """A consumer acknowledges messages. Those of one grant come in their order; a later one does not count."""
    if not isinstance(served, KeyedServed):
        return
    keyed = served.keyed
    if keyed.handoff.frozen is not None and _waits(served, consumer, event):
        return
    consumer.ack_number = max(consumer.ack_number, event.number)
    void: dict[int, None] = {}
    passed: list[int] = []
    granted, singles, first_offset = keyed.grants.singles, keyed.line.singles, make_offset(keyed.segment_no, 0)
    for token, offset in zip(event.tokens, event.offsets, strict=True):
        frame = granted.get(token)
        if frame is not None and frame.consumer is consumer and frame.is_given:
            at = token - frame.first_token
            index = frame.indexes[at]
            if first_offset | index == offset:  # the same as below, for most messages
                del granted[token], singles[frame.names[at]]
                passed.append(index)
                continue
        grant = _grant_at(keyed, consumer, token, offset)
        if grant is None:
            void[token] = None
            continue
        keyed.acknowledge(grant)
        if grant.left == 0:
            keyed.end_grant(grant)
            keyed.line.requeue(grant.key)
    keyed.window.pass_over(passed)
    keyed.live_count -= len(passed)
    consumer.in_flight -= len(passed)
    # Rule `message-started` (J2): begun is the message that is next after these acknowledgements, and no later one of
    # its grant. Without it:
    #   1. c1 is granted k:5 to k:9, begins k:5, and acknowledges it. Its process is stopped before it begins k:6.
    #   2. The grant was begun, so k:6 loses an attempt. After five such stops k:6 is a dead letter, and no handler has
    #      ever seen it.
    for token in event.started:
        begun = _grant_of(keyed, consumer, token)
        if begun is not None:
            begun.is_started = True
    if served.ledger.untold_token:
        newest = max((token for token in event.tokens if token not in void), default=0)
        if served.ledger.told_dropped(newest):
            control_records.replicate_soon(served)
    if void:
        _tell_void(served.broker, consumer, void)
    control_records.after_passing(served)
    if event.tokens and not served.ledger.dirty and not served.ledger.replications:
        control_records.replicate_soon(served)  # so that the request is confirmed
    grants.go_on(served, freed=consumer)


def _tell_void(broker: BrokerState, consumer: Consumer, tokens: Iterable[int]) -> None:
    void = tuple(tokens)
    if void:
        text = "the grant has ended, or gave other messages: the messages come again, here or elsewhere"
        tell(broker, consumer, TokensVoid(void, errors.NotActiveError(text)))


# ---- failures -------------------------------------------------------------------------------------------


def on_nack(served: Seat, consumer: Consumer, event: ConsumerNack) -> None:
    """A consumer failed on a message: its grant ends, and the message comes again when its delay is over.

    Rule `head-stays` (I2): the message stays the first one of its key. Without it:
      1. A consumer fails on k:5, and k:6 is granted while the delay of k:5 runs.
      2. k:6 is worked on before k:5.
    """
    if not isinstance(served, KeyedServed):
        return
    keyed = served.keyed
    if keyed.handoff.frozen is not None and _waits(served, consumer, event):
        return
    grant = _grant_at(keyed, consumer, event.token, event.offset)
    if grant is None:
        _tell_void(served.broker, consumer, (event.token,))
        return
    is_there = keyed.end_grant(grant)
    if grant.is_passed:
        keyed.line.requeue(grant.key)
        text = f"group {served.group.name} is at most once: the message was acknowledged, and does not come again"
        tell(served.broker, consumer, TokensVoid((event.token,), errors.PreconditionError(text)))
        grants.go_on(served)
        return
    if grant.left > 1:
        grant.key.note_given(grant.offsets[-1])  # a handler of batches has seen what is after it (`given-again`)
    if is_there:
        _fail(served, grant.key, event.reason, event.delay_ms, is_last=event.is_last)
    else:
        keyed.line.requeue(grant.key)
    control_records.after_passing(served)
    grants.go_on(served, freed=consumer)


def _fail(served: KeyedServed, key: Key, reason: str, delay_ms: int | None = None, *, is_last: bool = False) -> None:
    """An attempt on the first message of a key has failed: try again later, or do what the policy says."""
    keyed, policy = served.keyed, served.cursor.retry
    attempts = key.attempts + 1
    is_last = is_last or 0 < policy.attempts_max <= attempts
    if delay_ms is None:
        delay_ms = policy.delay_ms(attempts, key.name)
    now = served.broker.now
    keyed.note_failure(key, reason, now.mono_us + 1_000 * delay_ms, now.wall_ms + delay_ms, delay_ms)
    if is_last and policy.exhausted is Exhausted.PARK_KEY:
        if _may_park(served):
            keyed.park(key, reason)
            served.note(
                "key_parked", key=name_to_text(key.name), attempts=attempts,
                error=reason,
            )  # fmt: skip
            return
        grants.note_full(served)
    is_dead = is_last and policy.exhausted is Exhausted.DEAD_LETTER
    if is_dead and dead_letters.may_forward(served):
        dead_letters.begin(served, key, reason)
        return
    served.broker.out.emit(KeepMessage(served.partition.id, keyed.first_offset(key), delay_ms))
    keyed.line.requeue(key)


def _may_park(served: KeyedServed) -> bool:
    """Whether there is room for one more list. If not, the key is tried again, so that nothing is lost."""
    return served.keyed.lists.has_room(served.broker.config)


def on_extend(served: Seat, consumer: Consumer, event: ConsumerExtend) -> None:
    """A consumer moves the deadlines of grants. With a time of 0 it gives them back: they end now."""
    if not isinstance(served, KeyedServed):
        return
    keyed = served.keyed
    if keyed.handoff.frozen is not None and _waits(served, consumer, event):
        return
    deadline_us = served.broker.now.mono_us + 1_000 * min(max(event.grant_ms, 1), GRANT_MS_MAX)
    void: dict[int, None] = {}
    for token in event.tokens:
        grant = _grant_of(keyed, consumer, token)
        if grant is None:
            void[token] = None
        elif event.grant_ms <= 0:
            reason = f"{consumer.name} gave it back"
            end_grant(served, grant, reason, is_seen=not event.is_unseen)
        else:
            keyed.grants.set_deadline(grant, deadline_us)
    if void:
        _tell_void(served.broker, consumer, void)
    if event.grant_ms <= 0:
        control_records.after_passing(served)
        grants.go_on(served)


def on_demand(seat: Seat, consumer: Consumer, event: ConsumerDemand) -> None:
    """A consumer that joined on demand asks for this many messages from now on. Others have no demand to change."""
    if consumer.is_on_demand:
        consumer.demand = event.messages
        consumer.run_max = event.run_max or consumer.run_max
        if isinstance(seat, KeyedServed):
            grants.go_on(seat)


def end_late(served: KeyedServed) -> None:
    """End the grants whose deadline has passed."""
    keyed = served.keyed
    if keyed.handoff.frozen is not None:
        return
    late: dict[Consumer, list[int]] = {}
    for grant in keyed.grants.due(served.broker.now.mono_us):
        if not grant.is_given:
            keyed.grants.set_deadline(
                grant, served.broker.now.mono_us + served.broker.config.grant_poll_us
            )  # its values are being read
            continue
        late.setdefault(grant.consumer, []).append(grant.token)
        end_grant(served, grant, "the deadline of the grant has passed")
    if late:
        count, first = sum(map(len, late.values())), next(iter(late)).name
        served.note("grants_expired", count=count, consumer=first)
    for consumer, tokens in late.items():
        if not consumer.is_absent:
            _tell_void(served.broker, consumer, tokens)
    control_records.after_passing(served)


def end_grant(
    served: KeyedServed,
    grant: Grant,
    reason: str,
    *,
    is_seen: bool = True,
) -> None:
    """A grant ends and did not fail. An attempt counts only if the consumer had begun to work on the next message.

    What a consumer only held does not count as an attempt. Without it:
      1. A consumer is given 1,000 keys in advance. One of them kills its process.
      2. Each of the 1,000 keys has lost an attempt. After five such deaths all of them are parked.

    Rule `given-again` (I9): whether it had begun or not, what it was given comes again with the flag. Without it:
      1. A consumer is given k:5 and k:6, and works on both. Its process is killed before it has reported anything.
      2. Another consumer is given both again, k:5 as the first attempt. It cannot know that they are repeats.

    With `is_seen` False, the consumer says that its application got none of the messages. Then they are no repeats.
    """
    keyed = served.keyed
    is_there = keyed.end_grant(grant)
    if grant.is_given and grant.left and (is_seen or grant.is_started):
        grant.key.note_given(grant.offsets[-1])
    if is_there and grant.is_started and grant.left and not grant.is_passed:
        _fail(served, grant.key, reason)
        return
    keyed.line.requeue(grant.key)


def leave(served: KeyedServed, gone: list[Consumer]) -> None:
    """Consumers are gone: what was granted to them is granted to others."""
    keyed = served.keyed
    if keyed.handoff.frozen is not None:
        return  # when the handoff is over, the grants of consumers that left end
    for grant in keyed.grants.of(gone):
        end_grant(served, grant, f"{grant.consumer.name} has ended")
    control_records.after_passing(served)
    if served.group.consumers:
        grants.go_on(served)
    elif served.ledger.dirty:
        control_records.replicate(served)
