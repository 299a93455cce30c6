"""Keys that wait: administrators list them, release them, and pass over their first messages.

    asked ──cursor read──▶ refused: no such group, or its keys are not granted one by one
      └──served here, right held──▶ done in one step ──durable on all──▶ answered

Only the server of the cursor segment knows the keys, and only while no other member may deliver. So it loads the state
of a consumer group for such a request, also when the consumer group has no consumers, or is paused.

Rule `keys-said-when-durable` (J2): a request is answered only when all that the answer says is durable on every
eligible and joining member. That holds for a list too: it says "parked". Without it:
  1. An administrator releases key k. The server answers at once, and dies.
  2. The next server does not have the release: k is parked for ever, and the administrator believes that it continues.

Rule `seen-key` (J2): a request names the turn and the first message that the administrator saw. A release raises the
turn, and a skip changes both, so a request that comes again does nothing. Without it:
  1. An administrator skips the first message of k, k:5. The answer is lost, and the administrator asks again.
  2. The server passes over k:6 too. No consumer ever works on k:6.
A request names the group epoch too, because a rewind restarts turns.

If this broker stops serving before the answer, the request is tried again, here or, by the caller, elsewhere.
"""

from __future__ import annotations

import heapq

from seriatim_api import errors
from seriatim_api.ids import format_offset
from seriatim_api.key_names import name_to_text

from ...peers import right
from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroupPhase, KeyedServed, KeyRequest, Seat
from ...state.keyed.dispatcher import KeyedDispatcher
from ...state.keyed.key import Key
from ...state.partition import Partition
from ...values.effects import KeysListed, KeysOperated
from ...values.events import CursorRecord, ListKeys, OperateKeys
from ...values.keyed import KeyOperation, KeyPhase, SeenKey, WaitingKey
from ...values.kinds import TimerKind
from ..cursors import control_records
from ..cursors.consumer_group import consumer_group_of, forget_if_unused
from . import dead_letters

REQUESTS_MAX = 64
"""Maximum number of requests about keys that wait for one consumer group on one partition."""

AT_ONCE_MAX = 4
"""How many of them are carried out in one step. A list of 100,000 keys takes 20 ms."""

RETRY_US = 50_000
"""Time between two looks at requests that wait."""


def ask(broker: BrokerState, partition: Partition, event: ListKeys | OperateKeys) -> None:
    """An administrator asks about keys, or operates on them: have the consumer group served here, if this is its
    server."""
    consumer_group = partition.consumer_groups.get(event.consumer_group)
    if consumer_group is not None and len(consumer_group.key_requests) >= REQUESTS_MAX:
        text = f"{REQUESTS_MAX} requests about keys of group {event.consumer_group} wait already: try again later"
        _emit(broker, event, errors.OverloadedError(text, retry_after_ms=200))
        return
    is_new = consumer_group is None
    if consumer_group is None:
        consumer_group = consumer_group_of(broker, partition, event.consumer_group)
    is_first = not consumer_group.key_requests
    consumer_group.key_requests.append(KeyRequest(event))
    broker.wake(event.deadline_us, TimerKind.WAITING_KEYS, partition.id, event.consumer_group)
    broker.poll(RETRY_US, TimerKind.WAITING_KEYS, partition.id, event.consumer_group)
    if is_new:
        return
    seat = Seat(broker, partition, consumer_group)
    served = consumer_group.serving
    if consumer_group.phase is ConsumerGroupPhase.LOADING:
        partition.read_chain(broker)
        seat.read_cursor()
    elif served is not None and not consumer_group.consumers and is_first:
        control_records.write_if_dirty(served)
        consumer_group.look_again()  # rule `first-reads`: the group may have been deleted and made again since
        seat.read_cursor()
    elif isinstance(served, KeyedServed):
        go_on(served)


def on_due(broker: BrokerState, partition: Partition, group: str) -> None:
    """Time has passed: answer the requests whose deadline has passed, and try the others again."""
    consumer_group = partition.consumer_groups.get(group)
    if consumer_group is None or not consumer_group.key_requests:
        return
    for request in list(consumer_group.key_requests):
        if broker.now.mono_us >= request.event.deadline_us:
            consumer_group.key_requests.remove(request)
            text = "not all members that must keep it have confirmed in time"
            if isinstance(request.event, OperateKeys):
                text += ", so it is not known whether the keys were changed: a repeated request changes them once"
            _emit(broker, request.event, errors.DeadlineExceededError(text))
    if consumer_group.key_requests:
        if isinstance(consumer_group.served, KeyedServed):
            go_on(consumer_group.served)
        broker.poll(RETRY_US, TimerKind.WAITING_KEYS, partition.id, group)
    forget_if_unused(partition, consumer_group)


def fail(seat: Seat, error: errors.SeriatimError) -> None:
    """Answer every request with this error."""
    requests, seat.group.key_requests = seat.group.key_requests, []
    for request in requests:
        _emit(seat.broker, request.event, error)


def refuse_other_modes(seat: Seat, record: CursorRecord) -> None:
    """Answer every request if the consumer group is of a mode without keys."""
    if seat.group.key_requests and not record.mode.is_keyed:
        text = f"group {seat.group.name} is {record.mode.name.lower()}: only groups that are key_ordered or shared"
        fail(seat, errors.UnsupportedModeError(f"{text} have keys that wait"))


def go_on(served: KeyedServed) -> None:
    """Carry out the requests that wait, if this member may deliver, and have what they say made durable."""
    keyed = served.keyed
    waiting = [request for request in served.group.key_requests if not request.serial]
    if not waiting or not served.is_serving:
        return
    if keyed.handoff.frozen is not None:
        return  # rule `frozen-waits`: the state of the keys is handed over, or is not begun here
    if not right.has_right(served.broker, served.partition, served.segment):
        return
    if len(waiting) > AT_ONCE_MAX:
        served.go_on_next_step(TimerKind.WAITING_KEYS)
    waiting = waiting[:AT_ONCE_MAX]
    for request in waiting:
        if isinstance(request.event, OperateKeys):
            request.reply = _operate(served, request.event)
    for request in waiting:
        if isinstance(request.event, ListKeys):
            request.reply = _list(keyed, request.event, served.group.group_epoch)
    served.ledger.acknowledge(keyed.window.floor)
    serial = control_records.replicate(served)
    for request in waiting:
        request.serial = serial


def on_replicated(seat: Seat, serial: int) -> None:
    """All members have this control record, and with it all that requests until then have changed: answer these."""
    for request in list(seat.group.key_requests):
        if 0 < request.serial <= serial and request.reply is not None:
            seat.group.key_requests.remove(request)
            seat.broker.out.emit(request.reply)


def _emit(broker: BrokerState, event: ListKeys | OperateKeys, error: errors.SeriatimError) -> None:
    if isinstance(event, ListKeys):
        broker.out.emit(KeysListed(event.request, (), False, error))
    else:
        broker.out.emit(KeysOperated(event.request, (), error))


# ---- listing --------------------------------------------------------------------------------------------


def _list(keyed: KeyedDispatcher, event: ListKeys, group_epoch: int) -> KeysListed:
    """The keys that wait, a page of them.

    Rule `empty-is-a-key` (J2): the empty key is a key, and only None means every key. Without it:
      1. An administrator wants to pass over the first message of the empty key, and asks for that key.
      2. The broker lists each key that waits, and the administrator passes over messages of all of them.
    """
    names = [
        name
        for name, key in keyed.line.keys.items()
        if _waits(key)
        and name > event.after
        and event.name in (None, name)
        and (not event.phases or key.phase in event.phases)
    ]
    page = heapq.nsmallest(event.limit + 1, names)
    found = tuple(_described(keyed, keyed.line.keys[name], group_epoch) for name in page[: event.limit])
    return KeysListed(event.request, found, len(page) > event.limit, None)


def _waits(key: Key) -> bool:
    """Whether the key has a record, and no consumer works on it."""
    return key.phase is not None and not key.token


def _described(keyed: KeyedDispatcher, key: Key, group_epoch: int) -> WaitingKey:
    assert key.phase is not None
    count = len(key.aside) + len(key.live)
    first_offset = keyed.first_offset(key)
    error, ready_at_ms = key.error, key.ready_at_ms
    if key.phase is KeyPhase.FORWARDING:
        ready_at_ms = 0  # its record has the time of the failure there
        if keyed.forwarder.refusal:
            error = f"not in the dead-letter topic yet ({keyed.forwarder.refusal}): {error}"
    return WaitingKey(key.name, key.phase, key.attempts, key.turn, first_offset, count, ready_at_ms, error, group_epoch)


# ---- operating ------------------------------------------------------------------------------------------


def _operate(served: KeyedServed, event: OperateKeys) -> KeysOperated:
    results: list[errors.SeriatimError | bool] = []
    for seen in event.keys:
        try:
            results.append(_operate_on(served, event.operation, seen))
        except errors.SeriatimError as exc:
            results.append(exc)
    return KeysOperated(event.request, tuple(results), None)


def _operate_on(served: KeyedServed, operation: KeyOperation, seen: SeenKey) -> bool:
    """Operate on one key. Returns whether an earlier request did it.

    Raises:
        StaleGroupEpochError: Since the administrator saw the key, the consumer group was moved.
        PreconditionError: Since the administrator saw the key it has changed, or it is not in a state for this.
    """
    keyed = served.keyed
    if seen.group_epoch != served.group.group_epoch:
        # Rule `seen-key` again. Without it: 1. An administrator skips k:5, and has no answer. 2. The group is rewound.
        # 3. The administrator repeats the skip, and is told that it was done. It comes again, because the skip was of
        #    another epoch.
        raise errors.StaleGroupEpochError(
            f"group {served.group.name} was moved since key {name_to_text(seen.name)} was listed (group epoch "
            f"{seen.group_epoch}, now {served.group.group_epoch}), which ended all that was done to its keys: "
            "nothing was changed; list the keys again"
        )
    key = keyed.line.keys.get(seen.name)
    if key is None or key.phase is None:
        return True
    first_offset = keyed.first_offset(key)
    if was_done(key, first_offset, operation, seen):
        return True
    if (key.turn, first_offset) != (seen.turn, seen.first_offset):
        raise errors.PreconditionError(
            f"key {name_to_text(key.name)} has changed since it was listed (turn {key.turn}, first message "
            f"{_place(first_offset)}): nothing was changed; list the keys again"
        )
    if key.phase is KeyPhase.FORWARDING and key.sequence:  # rule `forwarding-ends-once`
        raise errors.PreconditionError(
            f"the first message of key {name_to_text(key.name)} is on its way to the dead-letter topic: nothing was "
            "changed"
        )
    if key.token:
        raise errors.PreconditionError(
            f"a consumer works on key {name_to_text(key.name)}: nothing was changed; try again when its grant has ended"
        )
    if operation is KeyOperation.SKIP and keyed.pass_first(key) is None:
        raise errors.PreconditionError(
            f"the first message of key {name_to_text(key.name)} was not read since this server began: nothing was "
            "changed; let a consumer join the group, and try again"
        )
    if operation is KeyOperation.DEAD_LETTER and not dead_letters.may_forward(served):
        raise errors.PreconditionError(
            f"group {served.group.name} has no dead-letter topic: nothing was changed; configure the group first"
        )
    if operation is KeyOperation.DEAD_LETTER:
        key.turn += 1
        dead_letters.begin(served, key, key.error or "sent by an administrator")
        dead_letters.go_on(served)
        return False
    if operation is KeyOperation.SKIP:
        key.turn += 1
        keyed.line.requeue(key)
    else:
        keyed.release(key)
    served.broker.out.note(
        "key_released" if operation is KeyOperation.RELEASE else "key_skipped",
        served.partition.id,
        group=served.group.name,
        key=name_to_text(seen.name),
        offset=_place(first_offset),
        turn=seen.turn + 1,
    )
    return False


def was_done(key: Key, first_offset: int, operation: KeyOperation, seen: SeenKey) -> bool:
    """Whether the key is beyond the state that the administrator saw, so that the request was carried out earlier."""
    if first_offset > seen.first_offset > 0:
        return True  # what the administrator saw is done with
    return operation is not KeyOperation.SKIP and first_offset == seen.first_offset and key.turn > seen.turn


def _place(offset: int) -> str:
    return format_offset(offset) if offset else "not read yet"
