"""The rows of a keyed dispatcher: which of them changed, and a dispatcher made of them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from heapq import heapify
from itertools import islice

from seriatim_api.ids import INDEX_MAX, make_offset

from ..values.events import Moment
from ..values.keyed import KeyPhase
from ..values.ledger_rows import (
    CHUNK_OFFSETS,
    CarriedGrant,
    KeyRecord,
    LedgerRowError,
    aside_name,
    key_name,
    read_rows,
    write_aside,
    write_forwarder,
    write_grant,
    write_key,
)
from ..values.log import LedgerChange
from .keyed import Forward, Grant, Key, KeyedDispatcher
from .window import Window


def take_changes(dispatcher: KeyedDispatcher) -> LedgerChange:
    """The change of the rows since the last call."""
    puts, deletes = dispatcher.window.take_changes()
    for name in dispatcher.changed:
        key = dispatcher.keys.get(name)
        if key is None or key.phase is None:
            deletes.append(key_name(name))
        else:
            puts.append((key_name(name), write_key(_record(key, key.phase))))
    for name, chunks in dispatcher.chunks.items():
        key = dispatcher.keys.get(name)
        for chunk in chunks:
            offsets = [] if key is None else _chunk(key, chunk)
            if offsets:
                puts.append((aside_name(name, chunk), write_aside(offsets)))
            else:
                deletes.append(aside_name(name, chunk))
    if dispatcher.is_number_new:
        puts.append(write_forwarder(dispatcher.next_number))
        dispatcher.is_number_new = False
    dispatcher.changed, dispatcher.chunks = {}, {}
    return LedgerChange(tuple(puts), tuple(deletes))


def _record(key: Key, phase: KeyPhase) -> KeyRecord:
    return KeyRecord(
        phase,
        key.turn,
        key.attempts,
        key.ready_at_ms,
        key.sequence,
        key.aside_first,
        len(key.aside),
        key.error,
    )


def _chunk(key: Key, chunk: int) -> list[int]:
    """The offsets of a chunk that are still in the key's list."""
    begin = max(chunk * CHUNK_OFFSETS - key.aside_first, 0)
    end = (chunk + 1) * CHUNK_OFFSETS - key.aside_first
    return list(islice(key.aside, begin, max(end, begin)))


def rows_to_hand_over(dispatcher: KeyedDispatcher, now: Moment) -> tuple[list[tuple[bytes, bytes]], int]:
    """The rows with which the server of the next segment goes on, and the oldest offset in them (0: there is none).

    Rule `live-joins-the-list` (J1): what is live goes into the lists. Without it:
      1. k:5 failed and waits in segment 1. k:6, in segment 1 too, waits behind it and is live.
      2. Only the list of k is handed over, and the cursor moves to segment 2.
      3. k:6 is never delivered.
    """
    rows: list[tuple[bytes, bytes]] = []
    oldest = 0
    dispatcher.weigh_all()
    for name, key in dispatcher.keys.items():
        run = dispatcher.doing.get(key.token)
        done = run.done if run is not None and not run.is_aside else 0
        live = key.live if not done or run is None else key.live[bisect_right(key.live, _last_done(run)) :]
        offsets = [*key.aside, *(make_offset(dispatcher.segment_no, index) for index in live)]
        if run is not None:
            left_ms = max(run.deadline_us - now.mono_us, 0) // 1_000
            carried = CarriedGrant(run.token, name, run.consumer.name, run.left, left_ms, run.is_started, run.is_passed)
            rows.append(write_grant(carried))
        if not offsets:
            continue
        oldest = min(oldest or offsets[0], offsets[0])
        phase = key.phase if key.phase is not None else KeyPhase.RETRY
        record = KeyRecord(phase, key.turn, key.attempts, key.ready_at_ms, key.sequence, 0, len(offsets), key.error)
        rows.append((key_name(name), write_key(record)))
        for begin in range(0, len(offsets), CHUNK_OFFSETS):
            chunk = offsets[begin : begin + CHUNK_OFFSETS]
            rows.append((aside_name(name, begin // CHUNK_OFFSETS), write_aside(chunk)))
    if dispatcher.next_number > 1:
        # Rule `numbers-cross` (J4): the next number is handed over too. Without it:
        #   1. The forwarder gives k:5 of segment 1 the number 1, and it is stored.
        #   2. The next server begins with number 1, and gives it to j:9 of segment 2.
        #   3. The master finds that number 1 of this producer is stored, and j:9 is passed without a dead letter.
        rows.append(write_forwarder(dispatcher.next_number))
    return rows, oldest


def _last_done(run: Grant) -> int:
    return run.offsets[run.done - 1] & INDEX_MAX


def carried_grants(rows: Sequence[tuple[bytes, bytes]]) -> list[CarriedGrant]:
    """The grants in the rows of a hand-over."""
    return read_rows(rows).grants


def dispatcher_of(segment_no: int, floor: int, rows: Sequence[tuple[bytes, bytes]], now: Moment) -> KeyedDispatcher:
    """A dispatcher that goes on where the rows end. Nothing is granted, and it reads from the floor on.

    Raises:
        LedgerRowError: A row cannot be read, or a list has not as many offsets as its key's record says.
    """
    found = read_rows(rows)
    dispatcher = KeyedDispatcher(segment_no, Window(floor, found.blocks))
    for name, record in found.keys.items():
        key = dispatcher.keys[name] = Key(name)
        key.phase, key.turn, key.attempts, key.ready_at_ms, key.sequence, key.aside_first, count, key.error = record
        chunks = found.asides.get(name, {})
        offsets = [offset for chunk in sorted(chunks) for offset in chunks[chunk]]
        if len(offsets) != count:
            raise LedgerRowError(f"the list of a key has {len(offsets)} offsets, and its record says {count}")
        if offsets:
            key.aside = deque(offsets)
            dispatcher.aside_count += count
            dispatcher.list_count += 1
            dispatcher.first_asides.append((offsets[0], name))
        if key.ready_at_ms > now.wall_ms and not key.is_held:
            key.ready_us = now.mono_us + 1_000 * (key.ready_at_ms - now.wall_ms)
        dispatcher.queue(key)
        if key.phase is KeyPhase.FORWARDING:
            dispatcher.forwards[name] = Forward(name, key.sequence)
    dispatcher.next_number = found.next_number
    heapify(dispatcher.first_asides)
    return dispatcher
