"""Dead letters: the first message of a key goes to the dead-letter topic after its last attempt, and the key continues.

    last attempt failed ─▶ FORWARDING ─▶ read, and copied ─▶ numbered ──durable everywhere──▶ sent ──stored──▶ passed

The server of the consumer group is a producer of the partition with the same number in the dead-letter topic. It sends
as `state.numbered_sending` says: here is what is special about dead letters. Each one is a batch of one message. The
producer id is a hash of the partition, the consumer group, its group epoch and the term of tokens. While the
dead-letter topic takes nothing, only these keys wait.

Rule `forwarding-ends-once` (J4): what has a number ends in no other way. Without it:
  1. k:5 has number 7, and its dead letter is on its way.
  2. An administrator releases k. A consumer is given k:5, and acknowledges it.
  3. k:5 is worked on, and it is in the dead-letter topic too.
"""

from __future__ import annotations

from typing import Final

from seriatim_api import errors
from seriatim_api.dead_letters import DeadLetterOrigin, dead_letter_producer
from seriatim_api.ids import format_offset
from seriatim_api.key_names import name_to_text

from ...peers import right
from ...state.consumers import KeyedServed
from ...state.keyed.forwarder import Forward
from ...state.keyed.key import Key
from ...state.numbered_sending import ANSWER_US, producer_epoch_of, term_of_number
from ...state.partition import Partition
from ...values.effects import ForwardBatches
from ...values.events import DeadLetterRead, ForwardsDone
from ...values.keyed import DeadLetter
from ...values.kinds import ReadKind, TimerKind
from ..cursors import control_records
from ..cursors.consumer_group import keyed_of
from . import earlier_messages

READ_BYTES_MAX: Final = 1 << 20
"""While a message is read, it counts as the largest one."""

SURE_MS: Final = 1_800_000
"""The table of the dead-letter topic remembers this producer for at least an hour. If a number was given longer ago
than half of that, its dead letter says that it may be there twice."""


def may_forward(served: KeyedServed) -> bool:
    """Whether exhausted messages of the consumer group can go to a dead-letter topic at all."""
    return bool(served.cursor.retry.dead_letter_topic)


def begin(served: KeyedServed, key: Key, reason: str) -> None:
    """The first message of the key, which is not granted, goes to the dead-letter topic."""
    served.keyed.forward(key, reason, served.broker.now.wall_ms)


def go_on(served: KeyedServed) -> None:
    """Something has changed: read, number and send what can be."""
    keyed = served.keyed
    if not keyed.forwarder.waiting:
        return
    if not served.is_serving or keyed.handoff.frozen is not None:
        return  # while the state of the keys is handed over, nothing of it changes
    if not right.has_right(served.broker, served.partition, served.segment):
        return
    _read(served)
    _send(served)
    _count_bytes(served)


def _count_bytes(served: KeyedServed) -> None:
    """Note how much this forwarder has in memory."""
    size_bytes = sum(
        READ_BYTES_MAX if forward.reading else len(forward.row.body) if forward.row is not None else 0
        for forward in served.keyed.forwarder.first
    )
    served.broker.count_forwarding((served.partition.id, served.group.name), size_bytes)


# ---- reading and numbering ------------------------------------------------------------------------------


def _read(served: KeyedServed) -> None:
    """Read the next messages."""
    broker, keyed, forwarder = served.broker, served.keyed, served.keyed.forwarder
    refusal = _refusal(served)
    now_us = broker.now.mono_us
    if refusal is not None:
        if now_us >= forwarder.send_from_us:
            _note_refusal(served, refusal)
        return
    for forward in forwarder.to_read(now_us):
        forward.offset = forward.offset or keyed.first_offset(keyed.line.keys[forward.name])
        if not forward.offset:
            continue
        if now_us < forward.from_us:
            served.poll(forward.from_us - now_us, TimerKind.KEYS)
            continue
        if not broker.has_forwarding_room(READ_BYTES_MAX):
            served.poll(forwarder.limits.pause_us, TimerKind.KEYS)
            return
        forward.reading = serial = broker.new_serial()
        broker.reads[serial] = (ReadKind.KEYS, served.partition.id, served.segment.no, served.group.name, 0)
        origin = _origin(served, forward)
        earlier_messages.read_dead_letter(served, serial, forward.offset, origin)
        _count_bytes(served)


def _refusal(served: KeyedServed) -> errors.SeriatimError | None:
    """Why nothing can be forwarded; None if it can."""
    topic = served.cursor.retry.dead_letter_topic
    if not topic:
        return errors.PreconditionError("the retry policy names no dead-letter topic any more")
    if served.chain.topic == topic:
        # Nothing is forwarded into itself. Without it: a message that always fails would be copied without end.
        return errors.PreconditionError(f"the dead-letter topic {topic} is the topic of the consumer group itself")
    return None


def _origin(served: KeyedServed, forward: Forward) -> DeadLetterOrigin:
    key = served.keyed.line.keys[forward.name]
    # By the clock of a server that was ahead, it failed in the future. Then it is not known how old the number is.
    is_old = bool(forward.number) and abs(served.broker.now.wall_ms - key.ready_at_ms) > SURE_MS
    return DeadLetterOrigin(
        served.chain.topic, served.chain.number, forward.offset, served.group.name, key.attempts, key.error,
        key.ready_at_ms, is_old,
    )  # fmt: skip


def on_read(served: KeyedServed, event: DeadLetterRead) -> None:
    """A message was read, and its dead letter is made: it gets a number."""
    keyed, forward = served.keyed, served.keyed.forwarder.end_read(event.serial)
    if forward is None or keyed.handoff.frozen is not None or not served.is_serving:
        return
    if event.row is None:
        _read_failed(served, forward)
    else:
        forward.row = event.row
        forward.tries = 0
        if not forward.number:
            keyed.give_number(forward, served.term)
            served.ledger.acknowledge(keyed.window.floor)
            forward.written = control_records.replicate(served)
    go_on(served)


def _read_failed(served: KeyedServed, forward: Forward) -> None:
    pause_us = served.keyed.forwarder.read_failed(forward, served.broker.now.mono_us)
    if forward.tries == 5:  # about 3 s: it is no accident
        served.note("dead_letter_waits", key=name_to_text(forward.name), error="the message cannot be read now")
    served.poll(pause_us, TimerKind.KEYS)


def give_back(served: KeyedServed, serial: int) -> bool:
    """No member has a message now: try again later. Returns whether the read was one of the forwarder."""
    forward = served.keyed.forwarder.end_read(serial)
    if forward is None:
        return False
    _read_failed(served, forward)
    return True


# ---- sending --------------------------------------------------------------------------------------------


def _send(served: KeyedServed) -> None:
    """Send the dead letters with the lowest numbers, if no request is under way."""
    keyed, forwarder, now_us = served.keyed, served.keyed.forwarder, served.broker.now.mono_us
    if now_us < forwarder.send_from_us:
        served.poll(forwarder.send_from_us - now_us, TimerKind.KEYS)
        return
    ready = forwarder.ready(lambda serial: keyed.handoff.is_common and serial not in served.ledger.replications)
    if not ready:
        return
    forwarder.begin(served.broker.new_serial(), ready, now_us)
    letters = tuple(
        DeadLetter(producer_epoch_of(forward.number), forward.row) for forward in ready if forward.row is not None
    )
    term = term_of_number(ready[0].number)
    producer = dead_letter_producer(served.partition.id, served.group.name, served.group.group_epoch, term)
    served.broker.out.emit(
        ForwardBatches(
            forwarder.sending, served.partition.id, served.group.name, served.cursor.retry.dead_letter_topic,
            served.chain.number, producer, letters,
        )
    )  # fmt: skip
    served.poll(ANSWER_US, TimerKind.KEYS)


def on_done(partition: Partition, event: ForwardsDone) -> None:
    """The master of the dead-letter topic has answered, or there is no answer: pass what is stored."""
    served = keyed_of(partition, event.consumer_group)
    stored = served.keyed.forwarder.answered(event.serial, event.stored_count) if served is not None else None
    if served is None or stored is None or served.keyed.handoff.frozen is not None or not served.is_serving:
        return  # nothing changes while the state is handed over: the next server sends it again, and finds it stored
    for forward in stored:
        _pass(served, forward)
    if event.error is not None:
        _note_refusal(served, event.error)
    elif served.keyed.forwarder.taken():
        served.note("dead_letters_taken")
    _count_bytes(served)
    control_records.after_passing(served)


def _pass(served: KeyedServed, forward: Forward) -> None:
    key = served.keyed.line.keys[forward.name]
    topic = served.cursor.retry.dead_letter_topic
    attempts, error = key.attempts, key.error
    served.keyed.pass_first(key)
    served.keyed.line.requeue(key)
    served.note(
        "dead_lettered", key=name_to_text(forward.name),
        offset=format_offset(forward.offset), topic=topic, attempts=attempts, error=error,
    )  # fmt: skip


def _note_refusal(served: KeyedServed, error: errors.SeriatimError) -> None:
    """The dead-letter topic takes nothing: try again later. Administrators are notified once, until it takes dead
    letters again."""
    forwarder = served.keyed.forwarder
    is_news = forwarder.refused(error.message, served.broker.now.mono_us)
    served.poll(forwarder.send_pause_us, TimerKind.KEYS)
    if is_news:
        topic = served.cursor.retry.dead_letter_topic
        served.note("dead_letters_refused", topic=topic, keys=len(forwarder.waiting), error=error.message)
