"""Earlier messages: those that were set aside in an earlier segment come from any member that has it in full.

Messages of a sealed segment never change, so no serving right is needed to read them. A member answers with batches, or
that it has none. If no member answers, only the keys of these messages wait.
"""

from __future__ import annotations

from typing import Final

from seriatim_api.batch import BatchHeader
from seriatim_api.dead_letters import DeadLetterOrigin
from seriatim_api.ids import MemberId, make_offset, split_offset

from ...peers import disks
from ...state.consumers import KeyedServed
from ...state.keyed import frames
from ...state.keyed.dispatcher import KeyedDispatcher
from ...state.keyed.grants import Fetch
from ...state.partition import Partition
from ...values.effects import ReadDeadLetter, ReadRows
from ...values.kinds import TimerKind
from ...values.messages import CopyAnswer, CopyRequest

ANSWER_US: Final = 500_000
"""A member that did not answer for this long is passed over."""

FETCH_BYTES: Final = 256 << 10
FETCHED_BYTES_MAX: Final = 8 << 20
"""Of one read, this many bytes of batches of other members are in memory, and those of one answer more."""

TRIES_MAX: Final = 8


def read_rows(served: KeyedServed, serial: int, offsets: tuple[int, ...], bytes_max: int) -> None:
    """Read messages by their offsets, first those that are not on this disk from other members.

    Rule `frames-by-size` (I13): the read counts the bytes of each message, and takes no more than `bytes_max` (2 MiB),
    but one message. Only the read knows them: batches may be compressed, and what is in lists was read long ago.
    Without it:
      1. Keys with small messages come last, and 1,000 messages of 200 KB of other keys are ready.
      2. They are granted together, because messages seem to be small: a frame of 200 MB.
      3. No client takes a frame of more than 32 MiB. It breaks the connection, joins again, and is sent the same frame.
    """
    first = make_offset(served.segment.no, 0)
    missing: list[int] = []
    if min(offsets) < first:
        missing = [offset for offset in offsets if offset < first and not _is_here(served.partition, offset)]
    if not missing:
        served.broker.out.emit(ReadRows(serial, served.partition.id, offsets, bytes_max))
        return
    fetch = served.keyed.grants.fetches[serial] = Fetch(offsets, missing, bytes_max)
    _ask(served, fetch)


def read_dead_letter(served: KeyedServed, serial: int, offset: int, origin: DeadLetterOrigin) -> None:
    """Read one message for the dead-letter topic, from another member if it is not on this disk."""
    if offset >= make_offset(served.segment.no, 0) or _is_here(served.partition, offset):
        served.broker.out.emit(ReadDeadLetter(serial, served.partition.id, offset, origin))
        return
    fetch = served.keyed.grants.fetches[serial] = Fetch((offset,), [offset], origin=origin)
    _ask(served, fetch)


def _is_here(partition: Partition, offset: int) -> bool:
    """Whether this disk has a message of an earlier segment."""
    no, index = split_offset(offset)
    log = partition.logs.get(no)
    return log is not None and log.is_in_sync and index >= log.start


def _ask(served: KeyedServed, fetch: Fetch) -> None:
    """Ask the next member that has the segment of the first missing message."""
    broker, partition = served.broker, served.partition
    no, index = split_offset(fetch.missing[0])
    segment = served.chain.segment(no)
    members: list[MemberId] = []
    for member in segment.members if segment is not None else ():
        if member == broker.member or disks.is_hung(broker, member):
            continue
        if broker.is_linked(member):
            members.append(member)
        else:
            broker.connect(member.broker)
    fetch.asked_us = broker.now.mono_us
    fetch.asked = None
    if members:
        member = members[fetch.tries % len(members)]
        fetch.asked = (member, fetch.missing[0])
        broker.send(member, CopyRequest(partition.id, no, index, FETCH_BYTES, want_table=False))
    served.poll(ANSWER_US, TimerKind.KEYS)


def on_answer(served: KeyedServed, sender: MemberId, message: CopyAnswer) -> list[int]:
    """A member answered. Returns the serials of the reads for which no member has the messages."""
    keyed = served.keyed
    failed: list[int] = []
    for serial, fetch in list(keyed.grants.fetches.items()):
        if fetch.asked is None or fetch.asked[0] != sender:
            continue
        if split_offset(fetch.asked[1]) != (message.segment_no, message.from_index):
            continue
        found = [batch for batch in message.batches if batch.header.segment == message.segment_no]
        before = len(fetch.missing)
        for batch in found:
            fetch.missing = [offset for offset in fetch.missing if not _has(batch.header, offset)]
        fetch.batches += found
        offsets = _first_found(keyed, serial, fetch)
        if offsets:
            del keyed.grants.fetches[serial]
            batches = tuple(fetch.batches)
            if fetch.origin is None:
                served.broker.out.emit(ReadRows(serial, served.partition.id, offsets, fetch.bytes_max, batches))
            else:
                served.broker.out.emit(
                    ReadDeadLetter(serial, served.partition.id, fetch.offsets[0], fetch.origin, batches)
                )
            continue
        fetch.tries += len(fetch.missing) == before
        if fetch.tries >= TRIES_MAX:
            del keyed.grants.fetches[serial]
            failed.append(serial)
        else:
            _ask(served, fetch)
    return failed


def _first_found(keyed: KeyedDispatcher, serial: int, fetch: Fetch) -> tuple[int, ...]:
    """The offsets with which a read continues; () if more must be fetched before.

    When `FETCHED_BYTES_MAX` are in memory, it continues with the first messages, and the others of the frame are ready
    again.
    """
    if not fetch.missing:
        return fetch.offsets
    frame = keyed.grants.reads.get(serial)
    found = fetch.offsets.index(fetch.missing[0])
    if frame is None or not found or sum(batch.size_bytes for batch in fetch.batches) < FETCHED_BYTES_MAX:
        return ()
    frames.cut(keyed, frame, found)
    return fetch.offsets[:found]


def _has(header: BatchHeader, offset: int) -> bool:
    no, index = split_offset(offset)
    return no == header.segment and header.base_index <= index < header.end_index


def ask_again(served: KeyedServed) -> list[int]:
    """Ask another member where the last one did not answer. Returns the serials of reads that are given up."""
    keyed = served.keyed
    failed: list[int] = []
    for serial, fetch in list(keyed.grants.fetches.items()):
        if served.broker.now.mono_us < fetch.asked_us + ANSWER_US:
            continue
        fetch.tries += 1
        if fetch.tries >= TRIES_MAX:
            del keyed.grants.fetches[serial]
            failed.append(serial)
        else:
            _ask(served, fetch)
    return failed
