"""Dead letters: the first message of a key goes to the dead-letter topic after its last attempt, and the key continues.

    last attempt failed ─▶ FORWARDING ─▶ read, and copied ─▶ numbered ──durable everywhere──▶ sent ──stored──▶ passed

The server of the consumer group is a producer of the partition with the same number in the dead-letter topic. The
ordinary producer table there makes it exactly-once. Each dead letter is a batch of one message, and has a *number*: the
term in which it was given (that of tokens), and a count in this term. The producer id is a hash of the partition, the
consumer group, its group epoch and the term. The count is the producer epoch of the batch. So the table takes a number
above the last one, and finds that a lower one is stored, whatever it has forgotten in between.

Dead letters are sent in the order of their numbers. A request has the lowest numbers of one term that are not known to
be stored, and there is one request at a time. While the dead-letter topic takes nothing, only these keys wait.

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
from ...state.broker import BrokerState
from ...state.consumers import KeyedServed
from ...state.keyed.dispatcher import KeyedDispatcher
from ...state.keyed.forwarder import FORWARDS_MAX, Forward
from ...state.keyed.key import Key
from ...state.partition import Partition
from ...values.effects import ForwardBatches
from ...values.events import DeadLetterRead, ForwardsDone
from ...values.keyed import DeadLetter, producer_epoch_of, term_of_number
from ...values.kinds import ReadKind, TimerKind
from ..cursors import control_records
from ..cursors.consumer_group import keyed_of
from . import earlier_messages

SEND_BYTES_MAX: Final = 2 << 20
"""A request with more than one dead letter has at most this many bytes of bodies."""

PAUSE_US: Final = 100_000
PAUSE_US_MAX: Final = 5_000_000
"""After a refusal or a failed read the forwarder waits for 0.1 s, then twice as long each time, up to 5 s."""

READ_BYTES_MAX: Final = 1 << 20
"""While a message is read, it counts as the largest one."""

COUNTS_US: Final = 60_000_000
"""What a forwarder has in memory counts for this long, unless it says so again. It looks at least every 30 s. So what a
consumer group had that left this broker does not count for ever."""

ANSWER_US: Final = 30_000_000
"""A request without an answer is sent again after this long. The runtime answers each one sooner than that."""

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
    if not right.has_right(served):
        return
    _take_up(keyed)
    _read(served)
    _send(served)
    _count_bytes(served)


def _count_bytes(served: KeyedServed) -> None:
    """Note how much this forwarder has in memory."""
    size_bytes = sum(
        READ_BYTES_MAX if forward.reading else len(forward.row.body) if forward.row is not None else 0
        for forward in served.keyed.forwarder.first
    )
    known, place = served.broker.forwarding_bytes, (served.partition.id, served.group.name)
    if size_bytes:
        known[place] = size_bytes, served.broker.now.mono_us + COUNTS_US
    else:
        known.pop(place, None)


def _has_room(broker: BrokerState) -> bool:
    """Whether one more message may be read, as far as the memory of all forwarders of this broker goes."""
    now_us, known = broker.now.mono_us, broker.forwarding_bytes
    for place in [place for place, (_, until_us) in known.items() if until_us <= now_us]:
        del known[place]
    used_bytes = sum(size_bytes for size_bytes, _ in known.values())
    return used_bytes + READ_BYTES_MAX <= broker.config.forwarding_bytes_max


def _take_up(keyed: KeyedDispatcher) -> None:
    """Find the offsets of messages whose keys were read."""
    for forward in keyed.forwarder.first:
        forward.offset = forward.offset or keyed.first_offset(keyed.line.keys[forward.name])


# ---- reading and numbering ------------------------------------------------------------------------------


def _read(served: KeyedServed) -> None:
    """Read the next messages, those with a number first.

    While the dead-letter topic takes nothing, one message is read for each try, and none is kept between two tries. So
    consumer groups whose dead-letter topics are full or deleted leave the memory to the others.
    """
    broker, keyed = served.broker, served.keyed
    refusal = _refusal(served)
    if refusal is not None:
        if broker.now.mono_us >= keyed.forwarder.send_from_us:
            _note_refusal(served, refusal)
        return
    now_us = broker.now.mono_us
    wanted = keyed.forwarder.first
    if keyed.forwarder.refusal:
        if now_us < keyed.forwarder.send_from_us:
            return
        numbered = [forward for forward in wanted if forward.number]
        wanted = [min(numbered, key=lambda forward: forward.number)] if numbered else wanted[:1]
    for forward in wanted:
        if forward.row is not None or forward.reading or not forward.offset:
            continue
        if now_us < forward.from_us:
            served.poll(forward.from_us - now_us, TimerKind.KEYS)
            continue
        if not _has_room(broker):
            served.poll(PAUSE_US, TimerKind.KEYS)
            return
        forward.reading = serial = broker.new_serial()
        broker.reads[serial] = (
            ReadKind.KEYS, served.partition.id, served.segment.no, served.group.name, 0,
        )  # fmt: skip
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
    """A message was read, and its dead letter is made: it gets a number.

    Only what can be sent gets a number. Without it: a message that cannot be read would hold up all later numbers.
    """
    keyed, forward = served.keyed, _reading(served.keyed, event.serial)
    if forward is None:
        return
    forward.reading = 0
    if keyed.handoff.frozen is not None or not served.is_serving:
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


def _reading(keyed: KeyedDispatcher, serial: int) -> Forward | None:
    return next((forward for forward in keyed.forwarder.first if forward.reading == serial), None)


def _read_failed(served: KeyedServed, forward: Forward) -> None:
    pause_us = min(PAUSE_US << min(forward.tries, 10), PAUSE_US_MAX)
    forward.tries += 1
    if not forward.number:  # it goes after the others, so that it holds up none of them
        served.keyed.forwarder.waiting[forward.name] = served.keyed.forwarder.waiting.pop(forward.name)
    forward.from_us = served.broker.now.mono_us + pause_us
    if forward.tries == 5:  # about 3 s: it is no accident
        served.note(
            "dead_letter_waits", key=name_to_text(forward.name),
            error="the message cannot be read now",
        )  # fmt: skip
    served.poll(pause_us, TimerKind.KEYS)


def give_back(served: KeyedServed, serial: int) -> bool:
    """No member has a message now: try again later. Returns whether the read was one of the forwarder."""
    forward = _reading(served.keyed, serial)
    if forward is None:
        return False
    forward.reading = 0
    _read_failed(served, forward)
    return True


# ---- sending --------------------------------------------------------------------------------------------


def _send(served: KeyedServed) -> None:
    """Send the dead letters with the lowest numbers, if no request is under way."""
    keyed = served.keyed
    now_us = served.broker.now.mono_us
    if now_us < keyed.forwarder.send_from_us:
        served.poll(keyed.forwarder.send_from_us - now_us, TimerKind.KEYS)
        return
    ready = _ready(served)
    if not ready:
        return
    keyed.forwarder.sending = served.broker.new_serial()
    keyed.forwarder.sent = tuple((forward.name, forward.number) for forward in ready)
    keyed.forwarder.send_from_us = now_us + ANSWER_US
    letters = tuple(
        DeadLetter(producer_epoch_of(forward.number), forward.row) for forward in ready if forward.row is not None
    )
    term = term_of_number(ready[0].number)
    producer = dead_letter_producer(served.partition.id, served.group.name, served.group.group_epoch, term)
    topic = served.cursor.retry.dead_letter_topic
    served.broker.out.emit(
        ForwardBatches(
            keyed.forwarder.sending,
            served.partition.id,
            served.group.name,
            topic,
            served.chain.number,
            producer,
            letters,
        )
    )
    served.poll(ANSWER_US, TimerKind.KEYS)


def _ready(served: KeyedServed) -> list[Forward]:
    """The dead letters with the lowest numbers, as far as they can be sent. All are of one term.

    Rule `numbered-is-durable` (J4): a dead letter is sent only when its number is durable on every eligible and joining
    member. Without it:
      1. A gives k:5 the number 1, which is on A's disk only. The dead letter is stored.
      2. A dies. A2 knows nothing of it, and gives number 1 to j:7.
      3. The master finds that number 1 is stored, and j:7 is passed without a dead letter.

    Rule `in-order-of-numbers` (J4): a request begins with the lowest number that is not known to be stored, and leaves
    none out. Without it:
      1. k:5 has number 1, and cannot be read now. j:7 has number 2, and is sent and stored.
      2. k:5 is read, and sent under number 1.
      3. The master finds number 2 of this producer, so it answers that number 1 is stored. k:5 is lost.
    """
    ready: list[Forward] = []
    size_bytes = 0
    for forward in sorted(served.keyed.forwarder.first, key=lambda forward: forward.number):
        if not forward.number:
            continue
        is_durable = served.keyed.handoff.is_common and forward.written not in served.ledger.replications
        if forward.row is None or not is_durable:
            break
        if ready and term_of_number(forward.number) != term_of_number(ready[0].number):
            break
        size_bytes += len(forward.row.body)
        if ready and size_bytes > SEND_BYTES_MAX:
            break
        ready.append(forward)
        if len(ready) == FORWARDS_MAX:
            break
    return ready


def on_done(partition: Partition, event: ForwardsDone) -> None:
    """The master of the dead-letter topic has answered, or there is no answer: pass what is stored.

    Rule `passed-is-stored` (J4): a message is passed only when its dead letter is stored on every member of the
    dead-letter topic's segment. Without it:
      1. The dead letter of k:5 is sent. The master dies before it has stored it.
      2. k:5 is passed, and in no topic.

    An answer counts for the number that was sent, and not for the key. Without it:
      1. The dead letter of k:5 is sent under number 7. Retention drops k:5, so that ends.
      2. A consumer fails on k:9, and it is to be forwarded too.
      3. The answer says that number 7 is stored. k:9 is passed, and in no topic.
    """
    served = keyed_of(partition, event.consumer_group)
    if served is None or not served.keyed.forwarder.sending or served.keyed.forwarder.sending != event.serial:
        return
    keyed = served.keyed
    sent, keyed.forwarder.sending, keyed.forwarder.sent, keyed.forwarder.send_from_us = keyed.forwarder.sent, 0, (), 0
    if keyed.handoff.frozen is not None or not served.is_serving:
        return  # nothing changes while the state is handed over: the next server sends it again, and finds it stored
    for name, number in sent[: event.stored_count]:
        forward = keyed.forwarder.waiting.get(name)
        if forward is not None and forward.number == number:
            _pass(served, forward)
    if event.error is not None:
        _note_refusal(served, event.error)
    elif keyed.forwarder.refusal:
        keyed.forwarder.refusal = ""
        served.note("dead_letters_taken")
    if event.error is None:
        keyed.forwarder.send_pause_us = 0
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
    keyed = served.keyed
    keyed.forwarder.send_pause_us = min(2 * keyed.forwarder.send_pause_us or PAUSE_US, PAUSE_US_MAX)
    keyed.forwarder.send_from_us = served.broker.now.mono_us + keyed.forwarder.send_pause_us
    served.poll(keyed.forwarder.send_pause_us, TimerKind.KEYS)
    if keyed.forwarder.refusal or keyed.forwarder.send_pause_us >= 8 * PAUSE_US:
        for forward in keyed.forwarder.first:
            forward.row = None  # it is read again for the next try
        _count_bytes(served)
    if keyed.forwarder.refusal or keyed.forwarder.send_pause_us < 8 * PAUSE_US:
        return  # a master that has just changed is no news
    keyed.forwarder.refusal = error.message
    topic = served.cursor.retry.dead_letter_topic
    served.note(
        "dead_letters_refused", topic=topic, keys=len(keyed.forwarder.waiting),
        error=error.message,
    )  # fmt: skip
