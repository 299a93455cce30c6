"""The rows of a keyed dispatcher: which of them changed, and a dispatcher made of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import heapify
from itertools import islice

from ...values.events import Moment
from ...values.keyed import DELAY_MS_MAX, KeyPhase
from ...values.ledger_rows import (
    CHUNK_OFFSETS,
    CarriedGrant,
    KeyRecord,
    LedgerRowError,
    aside_name,
    handed_rows,
    key_name,
    read_key_row,
    read_list_row,
    read_rows,
    without_grants,
    write_aside,
    write_forwarder,
    write_grant,
    write_key,
)
from ...values.log import LedgerChange
from ..window import Window
from .dispatcher import KeyedDispatcher
from .forwarder import Forward
from .handoff import UnreadRows
from .key import Key


def take_changes(dispatcher: KeyedDispatcher) -> LedgerChange:
    """The change of the rows since the last call."""
    puts, deletes = dispatcher.window.take_changes()
    if dispatcher.handoff.handed is not None:
        rows, dispatcher.handoff.handed = dispatcher.handoff.handed, None
        return LedgerChange((*puts, *rows), is_full=True)
    for name in dispatcher.line.changed:
        key = dispatcher.line.keys.get(name)
        if key is None or key.phase is None:
            deletes.append(key_name(name))
        else:
            puts.append((key_name(name), write_key(_record(dispatcher, key, key.phase))))
    for name, chunks in dispatcher.lists.chunks.items():
        key = dispatcher.line.keys.get(name)
        for chunk in chunks:
            offsets = [] if key is None else _chunk(key, chunk)
            if offsets:
                puts.append((aside_name(name, chunk), write_aside(offsets)))
            else:
                deletes.append(aside_name(name, chunk))
    if dispatcher.forwarder.is_number_new:
        puts.append(write_forwarder(dispatcher.forwarder.next_number))
        dispatcher.forwarder.is_number_new = False
    dispatcher.line.changed, dispatcher.lists.chunks = {}, {}
    return LedgerChange(tuple(puts), tuple(deletes))


def _record(dispatcher: KeyedDispatcher, key: Key, phase: KeyPhase) -> KeyRecord:
    """The record of a key.

    Rule `first-is-named` (J1, J2): a record names the first message, also without a list. Without it:
      1. A consumer fails on k:5, which should come again in 7 days. Then the consumer group has no consumers.
      2. Retention drops k:5. A consumer comes, and the server reads the records, and the messages from k:6 on.
      3. The attempts of k:5 count for k:6, which waits for 7 days. If k:5 was to be a dead letter, k:6 becomes one.
    """
    return KeyRecord(
        phase,
        key.turn,
        key.attempts,
        key.ready_at_ms,
        key.delay_ms if phase is KeyPhase.RETRY else key.sequence,
        key.aside_first if key.aside else dispatcher.first_offset(key),
        len(key.aside),
        key.error,
    )


def _chunk(key: Key, chunk: int) -> list[int]:
    """The offsets of a chunk that are still in the key's list."""
    begin = max(chunk * CHUNK_OFFSETS - key.aside_first, 0)
    end = (chunk + 1) * CHUNK_OFFSETS - key.aside_first
    return list(islice(key.aside, begin, max(end, begin)))


def rows_to_hand_off(
    dispatcher: KeyedDispatcher, known: Mapping[bytes, bytes], now: Moment
) -> tuple[list[tuple[bytes, bytes]], int]:
    """The rows with which the server of the next segment continues, and the oldest offset in them (0: there is none).

    Nothing is live, and `known`, the rows on this disk, has all changes. So these rows go over as they are, with the
    grants.

    Rule `live-joins-the-list` (J1): what is live goes into the lists first (`set_some_aside`). Without it:
      1. k:5 failed and waits in segment 1. k:6, in segment 1 too, waits behind it and is live.
      2. Only the list of k is handed over, and the cursor moves to segment 2.
      3. k:6 is never delivered.
    """
    rows = handed_rows(known.items())
    for grant in dispatcher.grants.by_token.values():
        left_ms = max(grant.deadline_us - now.mono_us, 0) // 1_000
        rows.append(
            write_grant(
                CarriedGrant(
                    grant.token,
                    grant.key.name,
                    grant.consumer.name,
                    grant.left,
                    left_ms,
                    grant.is_started,
                    grant.is_passed,
                )
            )
        )
    return rows, dispatcher.lists.oldest


def dispatcher_of(
    segment_no: int, floor: int, rows: Iterable[tuple[bytes, bytes]], *, from_before: bool = False
) -> KeyedDispatcher:
    """A dispatcher that continues where the rows end. `read_some` must read the keys first. It reads from the floor on.

    Args:
        segment_no: The cursor segment.
        floor: Its first index that is not passed.
        rows: The rows.
        from_before: They are from the segment before, so the first control record must have all of them.

    Raises:
        LedgerRowError: A row cannot be read.
    """
    found = read_rows(rows)
    dispatcher = KeyedDispatcher(segment_no, Window(floor, found.blocks))
    dispatcher.forwarder.next_number = found.next_number
    dispatcher.handoff.unread = UnreadRows(found.rest, grants=found.grants)
    dispatcher.handoff.frozen = []
    if from_before:
        dispatcher.handoff.handed = without_grants(rows)
    return dispatcher


def read_some(dispatcher: KeyedDispatcher, count: int, now: Moment) -> bool:
    """Read up to `count` rows into the dispatcher. Returns whether all are read.

    Then the grants that were handed over continue, for absent consumers.

    Raises:
        LedgerRowError: A row cannot be read, or a list has not as many offsets as its key's record says.
    """
    unread = dispatcher.handoff.unread
    if unread is None:
        return True
    for name, value in unread.rows[unread.at : unread.at + count]:
        chunk = read_list_row(name, value)
        if chunk is not None:
            unread.chunks.setdefault(chunk[0], {})[chunk[1]] = chunk[2]
        else:
            _read_key(dispatcher, unread, *read_key_row(name, value), now)
    unread.at += count
    if unread.at < len(unread.rows):
        return False
    dispatcher.handoff.unread = None
    heapify(dispatcher.lists.firsts)
    dispatcher.forwarder.taken_up()
    dispatcher.carry(unread.grants, now.mono_us)
    return True


def _read_key(dispatcher: KeyedDispatcher, unread: UnreadRows, name: bytes, record: KeyRecord, now: Moment) -> None:
    """Take up a key as its record says.

    Rule `first-is-read` (J1, J2): the server takes the first message of a key from its record, also before it has read
    that message in the log. Without it, the attempts on a message that retention has dropped count for the next one.
    """
    key = dispatcher.line.keys[name] = Key(name)
    phase, key.turn, key.attempts, key.ready_at_ms, key.sequence, key.aside_first, count, key.error = record
    dispatcher.line.to_phase(key, phase)
    chunks = unread.chunks.pop(name, {})
    offsets = [offset for number in sorted(chunks) for offset in chunks[number]]
    if len(offsets) != count:
        raise LedgerRowError(f"the list of a key has {len(offsets)} offsets, and its record says {count}")
    if offsets:
        key.aside = deque(offsets)
        dispatcher.lists.message_count += count
        dispatcher.lists.note(key)
        dispatcher.lists.firsts.append((offsets[0], name))
    else:
        key.first, key.aside_first = key.aside_first, 0
    if key.phase is KeyPhase.RETRY:
        key.delay_ms, key.sequence = key.sequence, 0
    if key.ready_at_ms > now.wall_ms and not key.is_held:
        # Rule `delay-is-the-longest` (J1): a key waits no longer than its delay. Without it:
        #   1. The clock of a server is a year ahead. A consumer fails on k:5, and k should wait for a second.
        #   2. The server is replaced by one whose clock is right. It lets k wait for a year.
        left_ms = min(key.ready_at_ms - now.wall_ms, key.delay_ms or DELAY_MS_MAX)
        key.ready_at_ms = now.wall_ms + left_ms
        dispatcher.line.wait_until(key, now.mono_us + 1_000 * left_ms)
    dispatcher.line.queue(key)
    if key.phase is KeyPhase.FORWARDING:
        dispatcher.forwarder.waiting[name] = Forward(name, key.sequence)
