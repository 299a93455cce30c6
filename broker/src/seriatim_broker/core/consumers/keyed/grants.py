"""Grants: messages of a consumer group in which order is by key go to its consumers, key by key.

The server reads the keys of the cursor segment ahead, without the values. It grants the first messages of a ready key
to a consumer that has room, and then reads the values of what it granted. Like all deliveries, this happens
only below the commit, only below a durable reservation, and only while the server has the serving right.
"""

from __future__ import annotations

from itertools import accumulate, islice, takewhile
from typing import Final

from seriatim_api.dead_letters import group_hash
from seriatim_api.ids import INDEX_MAX, MemberId, format_offset, make_offset, split_offset
from seriatim_api.key_names import KEY_BYTES_MAX, name_of_key, name_of_offset, name_to_text

from ...copies import producer_tables
from ...peers import right
from ...state.broker import BrokerState
from ...state.consumers import KeyedServed
from ...state.dispatcher import Consumer
from ...state.keyed import frames, room
from ...state.keyed.dispatcher import KeyedDispatcher
from ...state.keyed.grants import GRANT_BYTES_MAX, GRANT_MESSAGES_MAX, Frame, Grant, Unsent
from ...state.keyed.key import Key
from ...state.partition import Partition
from ...values import tokens
from ...values.effects import Granted, ReadKeys
from ...values.events import KeysRead, RowsRead
from ...values.keyed import ConsumerMode, KeyColumn
from ...values.kinds import ReadKind, TimerKind
from ...values.messages import CopyAnswer
from ...values.passing import is_passed_by
from ...values.positions import Place, end_of_gone, position_of
from ...values.segment import SegmentState
from ..cursors import control_records
from ..cursors.consumer_group import tell
from ..cursors.gap_reports import GoneBudget, tell_dropped, tell_lost
from . import dead_letters, earlier_messages

DELAY_STEP_US: Final = 5_000
"""Keys whose delays end within this time become ready together, at the end of it, unless something else happens."""

TERM_US: Final = 10_000
"""If few tokens of a term are left, the server takes the next term after this long."""

LOOK_US: Final = 100_000
"""If no key could be set aside, the next look is so much later: a look reads all keys."""

FRAME_MESSAGES_MAX: Final = 1_024
"""Maximum number of messages that are read for one consumer at once."""


UNREADABLE_MAX: Final = 10_000
"""Of this many messages a server remembers that their bodies cannot be read."""

ROOM_SHARE: Final = 4
"""A consumer is given more when a fourth of what it may hold is free. Without it, each acknowledgement of a few
messages would be answered by a frame with a few messages, and a frame costs as much as some hundred messages. So if few
keys are ready, they are shared among the consumers that have room, but each gets as many as make a fourth of what it
may hold."""


def go_on(served: KeyedServed, freed: Consumer | None = None) -> None:
    """Something has changed: read more keys, and grant what is ready to consumers that have room.

    Args:
        served: The consumer group.
        freed: Only this consumer has more room than before; None: any consumer may have.
    """
    keyed, log = served.keyed, served.log
    if not served.is_serving or keyed.handoff.frozen is not None:
        return  # the state of the keys is handed over, or other members do not know yet that it was begun here
    for serial in earlier_messages.ask_again(served) if keyed.grants.fetches else ():
        _give_back(served, serial)
        freed = None
    if keyed.window.floor < log.start and log.readable_below and not _drop_below(served, log.start):
        return
    gone = None
    if keyed.lists.firsts:
        gone = GoneBudget(served)
        _pass_gone_lists(served, gone)
    if keyed.line.delayed:
        keyed.line.wake_delayed(served.broker.now.mono_us)
    if keyed.grants.unsent:
        _give_durable(served)
        freed = None
    _grant(served, freed, gone)
    if gone is not None and gone.dropped:
        gone.tell_dropped(served.group.consumers, keyed.lists.oldest)
    if keyed.forwarder.waiting:
        dead_letters.go_on(served)
    _read(served)
    # Grants have deadlines also while keys are delayed. Without the second poll: 1. Key a is delayed for 5 minutes.
    # 2. The consumer of key b hangs. 3. The grant of b ends when the delay of a is over, and not at its own deadline.
    if keyed.line.delayed:
        after_us = max(keyed.line.delayed[0][0] - served.broker.now.mono_us, DELAY_STEP_US)
        served.poll(after_us, TimerKind.KEYS)
    if keyed.grants.by_token or keyed.grants.singles:
        served.poll(served.broker.config.grant_poll_us, TimerKind.KEYS)


def _drop_below(served: KeyedServed, start: int) -> bool:
    """Retention dropped messages that are not passed: forget them, and notify each consumer.

    If they are of many keys, it takes several steps, in which nothing is granted. Returns whether it is done.
    """
    keyed = served.keyed
    floor = keyed.window.floor
    if not keyed.drop_below(start, served.broker.config.keys_at_once):
        control_records.replicate_soon(served)
        served.go_on_next_step(TimerKind.KEYS)
        return False
    for consumer in served.group.consumers:
        first, end = make_offset(keyed.segment_no, floor), Place(keyed.segment_no, start)
        tell_dropped(served.broker, consumer, first, end, start - floor)
    _note_gone(served, make_offset(keyed.segment_no, floor))
    keyed.read_index = max(keyed.read_index, start)
    served.ledger.acknowledge(keyed.window.floor)
    control_records.replicate_soon(served)
    return True


def _note_gone(served: KeyedServed, offset: int) -> None:
    """Messages from an offset on are dropped or lost, and the consumers were notified: see `Ledger.note_dropped`.

    Rule `lost-is-noted` (I1): what was declared lost is noted as a drop is, whether consumers are here or not. Without
    it:
      1. k:5 of segment 1 waits for its dead-letter topic, which is away. The consumer group has no consumers.
      2. An administrator declares segment 1 lost. The server passes k:5, so that k continues.
      3. A consumer comes, and no broker tells it that k:5 is lost.

    Rule `gone-is-noted` (I1): also what was dropped is noted, until a message counts that was given later. Without it,
    a consumer that comes after the drop is given 1:100 first, and is not notified of 1:0 to 1:99.
    """
    if served.cursor.at_most_once:
        return
    newest_token = served.token_base + served.broker.streams.tokens
    served.ledger.note_dropped(offset, position_of(served.chain, offset), newest_token)


# ---- reading keys ---------------------------------------------------------------------------------------


def _read(served: KeyedServed) -> None:
    """Read more keys, if there is room for them and few are ready."""
    consumer_group, keyed = served.group, served.keyed
    log = served.log
    config = served.broker.config
    if keyed.reading or keyed.read_index >= log.readable_below:
        return
    if not (consumer_group.consumers or keyed.forwarder.waiting):
        return
    if len(keyed.line.ready) > FRAME_MESSAGES_MAX * max(len(consumer_group.consumers), 1):
        return  # enough is ready for each of them
    if (keyed.lists.is_full_of(config) or room.is_short(keyed, config)) and not _make_room(served):
        return
    if not right.has_right(served.broker, served.partition, served.segment):
        return
    keyed.reading = served.broker.new_serial()
    served.broker.reads[keyed.reading] = (
        ReadKind.KEYS, served.partition.id, consumer_group.segment_no, consumer_group.name, keyed.read_index,
    )  # fmt: skip
    served.broker.out.emit(
        ReadKeys(
            keyed.reading,
            served.partition.id,
            consumer_group.segment_no,
            keyed.read_index,
            log.readable_below,
            config.deliver_bytes,
        )
    )


def _make_room(served: KeyedServed) -> bool:
    """Set messages of keys aside that wait and are in the way of others. Returns whether more may be read now.

    A delayed key does not stop the others. Without it:
      1. A consumer fails on the first message of key k. The policy tries again for ever.
      2. The window and the memory for live messages are full: all others wait for k.

    If the lists are full, or too many keys wait, reading stops, and grants continue. An event names the oldest message.
    """
    keyed, config = served.keyed, served.broker.config
    is_full = keyed.lists.is_full_of(config)
    if served.broker.now.mono_us < keyed.lists.looks_from_us:
        return False
    is_idle = not keyed.line.has_ready and _is_consumer_idle(served)
    is_more = room.make_room(keyed, config, config.keys_at_once, is_consumer_idle=is_idle)
    keyed.lists.is_full = keyed.lists.is_full or is_full
    if keyed.window.floor > served.ledger.acked:
        served.ledger.acknowledge(keyed.window.floor)
    if keyed.line.changed:
        control_records.replicate_soon(served)
    if keyed.lists.is_full:
        note_full(served)
    if not keyed.lists.is_full_of(config) and not room.is_short(keyed, config):
        return True
    if is_more:
        served.go_on_next_step(TimerKind.KEYS)
        return False
    keyed.lists.looks_from_us = served.broker.now.mono_us + LOOK_US
    return False


def _is_consumer_idle(served: KeyedServed) -> bool:
    """Whether a consumer that has room has less than half of its share of what may be live."""
    share = served.broker.config.live_messages_max // (2 * max(len(served.group.consumers), 1))
    return not served.group.is_held and any(
        consumer.in_flight < max(share, 1) and _room_of(served.broker, consumer) > 0
        for consumer in served.group.consumers
    )


def note_full(served: KeyedServed) -> None:
    """Say once that the lists are full, until there is room again: no key is parked, or messages are not read."""
    keyed = served.keyed
    if keyed.lists.is_full_noted:
        return
    keyed.lists.is_full_noted = True
    offset = keyed.lists.oldest
    key = next((key.name for key in keyed.line.keys.values() if key.aside and key.aside[0] == offset), b"")
    served.note(
        "lists_full",
        key=name_to_text(key),
        oldest=format_offset(offset),
    )


def on_keys_read(served: KeyedServed, event: KeysRead) -> None:
    """The keys were read: the messages wait behind those of the same key.

    All that was read is reserved, so that it can be granted; see rule `reservations` in `exclusive.delivery`.
    """
    broker, keyed, segment = served.broker, served.keyed, served.segment
    if keyed.reading != event.serial:
        return
    keyed.reading = 0
    if not event.columns:
        served.retry_in(broker.config.retry_us)
        return
    before = None
    if segment.incomplete_table:
        before = producer_tables.want_before(broker, served.partition, segment.no)
        if before is None:
            served.retry_in(broker.config.retry_us)
            return
    is_shared = served.cursor.mode is ConsumerMode.SHARED
    for_it = (0, group_hash(served.group.name))
    for column in event.columns:
        header = column.header
        if header.end_index > served.log.readable_below:
            break
        if header.base_index > keyed.read_index:
            break  # a hole: read again from there
        if (before is not None and before.covers(header)) or is_passed_by(header, for_it):
            keyed.window.pass_over(range(max(keyed.read_index, header.base_index), header.end_index))
        else:
            _take_in(keyed, column, is_shared=is_shared)
            keyed.grants.average_bytes = keyed.grants.average_bytes or header.body_length // header.message_count
        keyed.read_index = max(keyed.read_index, header.end_index)
    control_records.after_passing(served)
    ahead = broker.config.reservation_messages
    if keyed.read_index + ahead // 2 > served.ledger.reserved:  # early, so that no grant waits for it
        served.ledger.reserved = keyed.read_index + ahead
        control_records.replicate(served)
    go_on(served)


def _take_in(keyed: KeyedDispatcher, column: KeyColumn, *, is_shared: bool) -> None:
    base, keys = column.header.base_index, None if is_shared else column.keys
    singles, heavy, ready = keyed.line.singles, keyed.line.keys, keyed.line.ready
    first_offset = make_offset(keyed.segment_no, 0)
    for index in keyed.window.not_passed(max(keyed.read_index, base), column.header.end_index):
        key = keys[index - base] if keys is not None else None
        if key is None:
            name = name_of_offset(first_offset | index)
        else:
            name = b"k" + key if len(key) <= KEY_BYTES_MAX else name_of_key(key)
        if name in singles or name in heavy:
            keyed.take_in(name, index, first_offset | index)
        else:  # the same as `take_in`, for most messages
            singles[name] = index
            ready.append(name)
            keyed.live_count += 1


# ---- granting -------------------------------------------------------------------------------------------


def _grant(served: KeyedServed, freed: Consumer | None, gone: GoneBudget | None) -> None:
    """Grant ready keys to the consumers that have room, in turns.

    Mostly more is ready than the consumers have room for. Then a consumer that acknowledges messages is the only one
    to look at: with many consumers, a look at all of them costs more than the rest of the step.
    """
    broker, keyed = served.broker, served.keyed
    was_sated, keyed.grants.is_sated = keyed.grants.is_sated, False
    if served.group.is_held or not keyed.line.ready:
        return
    candidates = [freed] if freed is not None and was_sated else served.group.consumers
    waiting = [consumer for consumer in candidates if _room_of(broker, consumer) > 0]
    if not waiting:
        keyed.grants.is_sated = True
        return
    if not right.has_right(served.broker, served.partition, served.segment):
        return
    count = broker.streams.tokens - served.group.tokens_from
    if count >= broker.config.term_tokens_max:  # few tokens of the term are left, so the server takes the next term
        served.poll(TERM_US, TimerKind.KEEPING)
        if count + FRAME_MESSAGES_MAX > tokens.count_max(served.term):
            return
    turn = keyed.grants.turn % len(waiting)
    keyed.grants.turn += 1
    fair = -(-len(keyed.line.ready) // len(waiting))
    for consumer in waiting[turn:] + waiting[:turn]:
        share = max(fair, consumer.in_flight_max // ROOM_SHARE, 1)
        bytes_max = min(broker.streams.credits[consumer.stream], broker.config.deliver_bytes)
        frame = _frame_for(served, consumer, share, bytes_max, gone)
        if frame is None:
            break  # no key is ready, or only such that wait for a reservation
        consumer.read_serial = broker.new_serial()
        keyed.grants.reads[consumer.read_serial] = frame
        broker.reads[consumer.read_serial] = (
            ReadKind.KEYS, served.partition.id, served.segment.no, served.group.name, 0,
        )  # fmt: skip
        earlier_messages.read_rows(served, consumer.read_serial, frame.offsets, bytes_max)
    else:
        keyed.grants.is_sated = True  # each of them is given something


def _room_of(broker: BrokerState, consumer: Consumer) -> int:
    """How many messages may be granted to the consumer now; 0 also if they are too few to be worth the cost of a frame.

    While messages are read for it, it has no room.
    """
    if consumer.read_serial or broker.streams.credits.get(consumer.stream, 0) <= 0:
        return 0
    most = consumer.in_flight_max
    room = most - consumer.in_flight
    if consumer.demand >= most:
        return room if room >= most // ROOM_SHARE else 0
    return min(room, consumer.demand)


def _frame_for(
    served: KeyedServed, consumer: Consumer, share: int, bytes_max: int, gone: GoneBudget | None
) -> Frame | None:
    """Grant ready keys to a consumer, at most `share` and as many messages as it has room for.

    `bytes_max` is how many bytes are read for it at once.
    """
    broker, keyed = served.broker, served.keyed
    average_bytes = max(keyed.grants.average_bytes, 1)  # a guess, so that few grants come back: see `frames-by-size`
    most = max(bytes_max // average_bytes, 1)
    room = min(_room_of(broker, consumer), FRAME_MESSAGES_MAX, most)
    longest = min(GRANT_MESSAGES_MAX, max(GRANT_BYTES_MAX // average_bytes, 1), consumer.run_max or GRANT_MESSAGES_MAX)
    # A consumer extends its grants in the time that it received. A shorter one counts when it joins again.
    grant_ms = max(served.cursor.retry.grant_ms, consumer.grant_ms)
    first_token = served.token_base + broker.streams.tokens + 1
    frame = Frame(consumer, first_token, broker.now.mono_us + 1_000 * grant_ms)
    ready, singles, granted, heavy = keyed.line.ready, keyed.line.singles, keyed.grants.singles, keyed.line.keys
    names, indexes, offsets = frame.names, frame.indexes, list[int]()
    first_offset, below = make_offset(keyed.segment_no, 0), served.ledger.safe_reserved
    while room > 0 and len(names) < share and ready:
        index = singles.get(ready[0])
        if index is None and ready[0] in heavy:
            found = _grant_key(served, frame, min(longest, room), gone)
            if found is None:
                break
            offsets += found
            room -= len(found)
        elif index is None or index < 0:
            ready.popleft()  # nothing is left of the key, or it is granted
        elif index >= below:
            break
        else:  # a single
            name = ready.popleft()
            token = first_token + len(names)
            singles[name] = -token
            granted[token] = frame
            names.append(name)
            indexes.append(index)
            offsets.append(first_offset | index)
            room -= 1
    if not names:
        return None
    broker.streams.tokens += len(names)
    consumer.in_flight += len(names) - len(frame.grants)  # the others are counted
    frame.offsets = tuple(offsets)
    keyed.grants.end_at(frame.deadline_us, first_token, len(names))
    return frame


def _grant_key(served: KeyedServed, frame: Frame, count: int, gone: GoneBudget | None) -> tuple[int, ...] | None:
    """Grant the first messages of the next ready key, which is no single, as a part of a frame.

    Returns:
        Their offsets; (): none of this key now, and the next one is ready; None: nothing more can be granted now.
    """
    keyed, line = served.keyed, served.keyed.line
    key = line.next_ready()
    if key is None:
        return None
    is_there = gone is None or _pass_gone(served, key, gone)
    if not is_there or not (key.live or key.aside):
        line.take_ready()
        if not is_there:
            line.wait_until(key, served.broker.now.mono_us + 1)  # until the next step; other keys continue
        line.requeue(key)
        return ()
    # What failed is mostly alone in memory, and may fail again. So what is after it is not read before that.
    found = _first_messages(keyed, key, 1 if key.attempts else count, served.ledger.safe_reserved)
    if not found:
        return None
    line.take_ready()
    token, is_aside = frame.first_token + len(frame.names), bool(key.aside)
    grant = Grant(token, key, frame.consumer, found, is_aside=is_aside, deadline_us=frame.deadline_us)
    keyed.begin_grant(grant)
    frame.add(grant)
    return found


def _pass_gone(served: KeyedServed, key: Key, budget: GoneBudget, *, is_in_turn: bool = False) -> bool:
    """Messages in the list of a key that retention dropped, or that were declared lost, are passed: notify consumers.

    A list loses what its segment loses, and the consumers are notified. Without it:
      1. k:5 was set aside in segment 1. Retention drops segment 1.
      2. k becomes ready. No member has k:5, so k waits for ever, and all later messages of k with it.

    A key that is parked continues, because the message on which it failed is gone.

    Args:
        served: The consumer group.
        key: The key.
        budget: How much may be passed in this step.
        is_in_turn: The key has the oldest message in a list. After some messages it is the turn of another one.

    Returns:
        Whether the first message of the list is there, or none is left. If not, that continues in the next step.
    """
    while key.aside:
        first = key.aside[0]
        end, is_lost = end_of_gone(served.chain, first)
        if not end:
            return True
        if not budget.is_left:
            return False
        gone = budget.take(key.aside, end, is_lost=is_lost)
        served.keyed.pass_listed(key, len(gone))
        _note_gone(served, first)
        control_records.replicate_soon(served)
        others = served.keyed.lists.oldest  # in the same segment, so that this gap has what other keys lose there
        lost_from = others if make_offset(split_offset(first)[0], 0) <= others < first else first
        for consumer in served.group.consumers if is_lost else ():
            tell_lost(served.broker, consumer, Place(*split_offset(lost_from)))
        if is_in_turn:
            break
    return True


def _pass_gone_lists(served: KeyedServed, budget: GoneBudget) -> None:
    """The same for keys that wait, whatever they wait for: from the oldest message on, as far as messages are gone.

    Rule `gone-lists-are-passed` (I13): also if the key is not about to be granted. Without it, a parked key waits for a
    message that no member has, and consumers are not notified of that.

    What has a number may be stored in the dead-letter topic all the same. Then it is there, and consumers are told that
    it is gone.

    No step does that for many keys (`gone-in-steps`). Without it:
      1. 100,000 keys are parked, and retention drops the segment with their messages.
      2. The server notifies each of 64 consumers of each message in one step, and answers no heartbeat for half a
         minute.
    """
    keyed = served.keyed
    if not served.group.consumers and served.cursor.at_most_once:
        return  # nothing is noted for it
    chain = served.chain
    while (oldest := keyed.lists.oldest) and end_of_gone(chain, oldest)[0]:
        key = keyed.line.keys[keyed.lists.firsts[0][1]]
        if key.token:
            return  # it may still be acknowledged
        is_there = _pass_gone(served, key, budget, is_in_turn=True)
        keyed.line.requeue(key)
        if not is_there:
            return
    if keyed.lists.lost_epoch != chain.epoch:
        # Rule `lost-behind-others` (I1, I13): lists in a lost segment are passed, also after older ones. Without it:
        #   1. j:1 of segment 1 and k:5 of segment 2 are parked. Segment 2 is declared lost.
        #   2. The oldest message in a list is j:1, which is there. So k waits for as long as j does.
        keyed.lists.lost_epoch = chain.epoch
        lost = {segment.no for segment in chain.segments if segment.state is SegmentState.LOST}
        keyed.lists.lost = keyed.lists.within(lost) if lost else []
    worked_on = []  # they may still be acknowledged; if one is parked instead, it is passed then
    while keyed.lists.lost:
        name = keyed.lists.lost[-1]
        listed = keyed.line.keys.get(name)
        if listed is not None and listed.token:
            worked_on.append(name)
        elif listed is not None:
            is_there = _pass_gone(served, listed, budget)
            keyed.line.requeue(listed)
            if not is_there:
                break
        keyed.lists.lost.pop()
    keyed.lists.lost += worked_on


def _first_messages(keyed: KeyedDispatcher, key: Key, count: int, below: int) -> tuple[int, ...]:
    """The offsets of the first messages of a key: of its list, or live ones that are reserved.

    Rule `list-first` (I2): what was set aside is older than what is live. Without it:
      1. k:5 was set aside. k:10 was read before that, and is live.
      2. The delay of k is over, and k:10 is granted before k:5.

    Rule `aside-is-reserved` (I9): the reservation counts for lists too. Without it:
      1. k:5 and k:6 are read, and set aside because too much is live. The reservation is not durable yet.
      2. k:5 is granted from the list. The server dies.
      3. The next server knows of no reservation, and grants k:5 again without the flag.

    A grant from a list has messages of one segment, because those of the next one may be gone. Without it:
      1. k:1:5 and k:2:0 were set aside. Segment 2 is declared lost.
      2. Both are granted as one grant. No member has k:2:0, so no message of the frame can be given.
      3. They are granted again like this for ever, and keys that are granted with them wait too.
    """
    if key.aside:
        no, _ = split_offset(key.aside[0])
        end = make_offset(no + 1, 0) if no < keyed.segment_no else make_offset(no, below)
        found = tuple(takewhile(lambda offset: offset < end, islice(key.aside, count)))
    elif len(key.live) == 1 and key.live[0] < below:
        return (make_offset(keyed.segment_no, key.live[0]),)
    else:
        live = key.live[:count]
        if live and live[-1] >= below:
            live = [index for index in live if index < below]
        found = tuple(make_offset(keyed.segment_no, index) for index in live)
    if keyed.unreadable:  # a grant ends before such a message, which comes alone
        found = found[:1] + tuple(takewhile(lambda offset: offset not in keyed.unreadable, found[1:]))
        found = found[:1] if found and found[0] in keyed.unreadable else found
    return found


def on_copy_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: CopyAnswer) -> None:
    """Another member sent messages of an earlier segment, or has none."""
    for consumer_group in list(partition.consumer_groups.values()):
        served = consumer_group.served
        if not isinstance(served, KeyedServed) or not served.keyed.grants.fetches:
            continue
        for serial in earlier_messages.on_answer(served, sender, message):
            _give_back(served, serial)
        go_on(served)


def _give_back(served: KeyedServed, serial: int) -> None:
    """No member has the messages now: their keys wait a moment, and others continue."""
    keyed = served.keyed
    served.broker.reads.pop(serial, None)
    if dead_letters.give_back(served, serial):
        return
    frame = keyed.grants.reads.pop(serial, None)
    if frame is None:
        return  # it was read for the forwarder, and meanwhile an administrator or retention ended that
    frame.consumer.read_serial = 0
    for grant in _grants_in(keyed, frame):
        if keyed.grants.by_token.get(grant.token) is grant:
            keyed.end_grant(grant)
            keyed.line.wait_until(grant.key, served.broker.now.mono_us + served.broker.config.retry_us_max)
            keyed.line.requeue(grant.key)


def on_rows_read(served: KeyedServed, event: RowsRead) -> None:
    """The values of granted messages were read: deliver them, if the grants still stand."""
    broker, keyed, is_at_most_once = served.broker, served.keyed, served.cursor.at_most_once
    if event.serial not in keyed.grants.reads:
        return
    frame = keyed.grants.reads.pop(event.serial)
    consumer, is_whole = frame.consumer, all(keyed.grants.by_token.get(grant.token) is grant for grant in frame.grants)
    if consumer.read_serial == event.serial:
        consumer.read_serial = 0
    freed = None
    if event.body is not None and event.count:
        keyed.grants.average_bytes = len(event.body) // event.count
        if event.count < len(frame.offsets):
            frames.cut(keyed, frame, event.count)
    if event.unreadable:
        _set_unreadable_aside(served, frame, event.unreadable)
    elif event.body is None:
        _take_back(keyed, frame)
        right.seek(broker, served.partition, served.segment.no)
        served.retry_in(broker.config.retry_us)
        return
    elif not is_whole:  # the body has the messages of all these grants, so it counts only if all of them do
        _take_back(keyed, frame)
    elif is_at_most_once and not right.has_right(served.broker, served.partition, served.segment):
        _take_back(keyed, frame)
        served.retry_in(broker.config.retry_us)
        return
    elif consumer.demand < len(frame.offsets):  # it asks for fewer by now, and would hold up the keys
        _take_back(keyed, frame)
    elif not right.has_right(
        served.broker, served.partition, served.segment
    ):  # it mostly comes back within milliseconds, so keep what was read
        consumer.read_serial = event.serial
        keyed.grants.unsent.append(Unsent(event.serial, frame, event.body, is_durable=True))
        served.retry_in(broker.config.retry_us)
        return
    elif is_at_most_once:
        frame.grants = _grants_in(keyed, frame)
        _acknowledge_first(served, Unsent(0, frame, event.body))
    else:
        _deliver(served, frame, event.body)
        freed = consumer
    go_on(served, freed)


def _take_back(keyed: KeyedDispatcher, frame: Frame) -> None:
    """The grants of a frame that was not given end, and their keys are ready again."""
    for grant in _grants_in(keyed, frame):
        if keyed.grants.by_token.get(grant.token) is grant:
            keyed.end_grant(grant)
            keyed.line.requeue(grant.key)


def _set_unreadable_aside(served: KeyedServed, frame: Frame, unreadable: tuple[int, ...]) -> None:
    """No reader can take some messages of a frame apart: their keys wait for an administrator, and all others continue.

    Nothing is passed over in silence: an administrator sees the key and the message in the list of keys that wait, and
    skips the message, or releases the key when brokers can read the body. Without it:
      1. A client that does not follow the contract sends a batch whose body is no record batch.
      2. A message of it is granted together with messages of other keys. The read fails, and all are read again.
      3. This never ends: the consumers get nothing.
    """
    keyed = served.keyed
    if len(keyed.unreadable) > UNREADABLE_MAX:
        keyed.unreadable = {}  # what is forgotten is found again
    keyed.unreadable.update(dict.fromkeys(unreadable))
    for grant in _grants_in(keyed, frame):
        if keyed.grants.by_token.get(grant.token) is not grant:
            continue
        keyed.end_grant(grant)
        key, first = grant.key, grant.offsets[0]
        if first not in keyed.unreadable:
            keyed.line.requeue(key)
        elif keyed.lists.has_room(served.broker.config):
            keyed.park(key, "the body of the message cannot be read: no consumer can be given it")
            served.note(
                "unreadable_message", key=name_to_text(key.name),
                offset=format_offset(first),
            )  # fmt: skip
        else:
            note_full(served)
            keyed.line.wait_until(key, served.broker.now.mono_us + served.broker.config.retry_us_max)
            keyed.line.requeue(key)
    control_records.after_passing(served)


def _acknowledge_first(served: KeyedServed, unsent: Unsent) -> None:
    """The messages are acknowledged now, and given when that is durable. Until then the consumer gets no others.

    Rule `acknowledged-first` (I9) of `exclusive.delivery` counts for single messages too.
    """
    keyed = served.keyed
    for grant in unsent.frame.grants:
        keyed.pass_grant(grant)
    served.ledger.acknowledge(keyed.window.floor)
    unsent.serial = unsent.frame.consumer.read_serial = control_records.replicate(served)
    keyed.grants.unsent.append(unsent)


def on_durable(served: KeyedServed, serial: int) -> None:
    """Every eligible member has a control record: what it acknowledges of an at-most-once group may be given."""
    for unsent in served.keyed.grants.unsent:
        unsent.is_durable = unsent.is_durable or unsent.serial <= serial


def _give_durable(served: KeyedServed) -> None:
    """Give what was held back, if this member has the serving right (rule `no-second-look`).

    That is what was read while the right was missing, and what is acknowledged durably of an at-most-once group. What
    was acknowledged for a consumer that has left is lost: it may not be given to another one, because this server does
    not know whether it would be the first to give it once the consumer group has moved on.
    """
    keyed = served.keyed
    if not any(unsent.is_durable for unsent in keyed.grants.unsent):
        return
    if not right.has_right(served.broker, served.partition, served.segment):
        return
    waiting, keyed.grants.unsent = keyed.grants.unsent, []
    for unsent in waiting:
        if not unsent.is_durable:
            keyed.grants.unsent.append(unsent)
            continue
        consumer = unsent.frame.consumer
        if consumer.read_serial == unsent.serial:
            consumer.read_serial = 0
        is_whole = all(keyed.grants.by_token.get(grant.token) is grant for grant in unsent.frame.grants)
        is_asked_for = consumer.demand >= len(unsent.frame.offsets)
        if not served.cursor.at_most_once and not (is_whole and is_asked_for):
            _take_back(keyed, unsent.frame)
        elif is_whole and consumer in served.group.consumers:
            _deliver(served, unsent.frame, unsent.body)


def _grants_in(keyed: KeyedDispatcher, frame: Frame) -> list[Grant]:
    """The grants of a frame that was not given, as objects of their own."""
    for name in frame.names:
        if name:
            keyed.grants.weigh(name)
    return sorted(frame.grants, key=lambda grant: grant.token)


def _deliver(served: KeyedServed, frame: Frame, body: bytes) -> None:
    offsets, count = frame.offsets, len(frame.names)
    frame.is_given = True
    frame.offsets = ()
    again = [grant.token for grant in frame.grants if grant.offsets[0] < grant.key.given_below]
    for grant in frame.grants:
        grant.is_given = True
    frame.grants = []
    repeated_index = served.ledger.repeated_below
    repeated_below = make_offset(served.segment.no, min(repeated_index, INDEX_MAX))
    counts = [1] * count if frame.counts is None else frame.counts + [1] * (count - len(frame.counts))
    attempts = [1] * count if frame.attempts is None else frame.attempts + [1] * (count - len(frame.attempts))
    if (served.cursor.at_most_once and not repeated_index) or min(offsets) >= repeated_below:
        repeated = [False] * count
    else:
        begins = accumulate(counts, initial=0)
        repeated = [offsets[begin] < repeated_below for begin in islice(begins, count)]
    for token in again:
        repeated[token - frame.first_token] = True
    frame.counts = frame.attempts = None
    if frame.consumer.is_on_demand:
        frame.consumer.demand = max(frame.consumer.demand - len(offsets), 0)
    tokens_given = range(frame.first_token, frame.first_token + len(counts))
    granted = Granted(tokens_given, counts, attempts, repeated, offsets, body, served.server_epoch)
    tell(served.broker, frame.consumer, granted)
    streams = served.broker.streams
    stream = frame.consumer.stream
    streams.credits[stream] = streams.credits.get(stream, 0) - len(body) - _HEADER_BYTES


_HEADER_BYTES: Final = 192  # of the batch that the deliveries of a frame are
