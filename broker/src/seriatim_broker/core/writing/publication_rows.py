"""Carrying out: the master of a partition's open segment appends the rows of a decided publication.

    asked ──own table──▶ all here ──committed──▶ answered
      └─▶ the next batch is fetched ─▶ checked ─▶ appended ─▶ … ─▶ committed ─▶ answered

The master appends ordinary batches: the producer is the writer, the producer epoch is the publication's sequence, and
the sequence of a message is the row's number in the publication. So a switch, a repeat and an incomplete table treat
them like all other batches, and the next master continues where its own producer table says (`stand`). Nothing of this
work is kept on a disk. It ends with the segment. Then the publisher asks the next master.

Rule `record-if-unknown` (I9, P1): a master that does not know the writer reads its record, and refuses unless the
record says DECIDED. Without it:
  1. Publication 7 is carried out. A second request to carry it out is still on its way.
  2. The broker group is lost, and the next segment opens with an empty producer table.
  3. The request arrives at the next master. It appends 7 again, perhaps after 8.
The same rule holds if staged data is gone: it may be gone because the publication was done long ago. And it holds if
the table has a later publication of the writer: then this one is done, or the coordinator has lost decisions.

Rule `window`: at most 16 batches of a writer are uncommitted. With more, the producer table would not know all of them,
and other producers would wait behind them.

Rule `ends-with-the-segment` (I6): nothing is carried out in a segment that was fenced. Without it:
  1. A switcher fences Am at tail 100. A staged batch arrives at Am.
  2. Am appends it at index 100, but the switcher seals the segment at length 100.
"""

from __future__ import annotations

from seriatim_api import errors
from seriatim_api.ids import make_offset, split_offset

from ..peers import disks, lost_decisions
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.segment_log import SegmentLog
from ..state.writing import FETCH_PAUSE_US, Carrying, Fetched, Wait
from ..values.effects import CarriedOut, FetchStaged, ReadWriter
from ..values.events import CarryOut, StagedFetched, WriterRead
from ..values.kinds import TimerKind
from ..values.log import Batch
from ..values.producers import WINDOW_BATCHES
from ..values.states import NOTHING, drop, put
from . import admission, appending
from .publication_plan import Stand, is_as_staged, published_header, stand

FETCHED_AHEAD_MAX = 4
"""Maximum number of staged batches of one publication that are fetched, or on their way, and not appended yet: about 2
MB. A publication that waits for a missing batch holds none, because as many may wait as there are partitions."""

CARRIED_BYTES_MAX = 64 << 20
"""Maximum number of bytes of staged batches that are in a broker's memory for all publications: fetched, or appended
and not committed yet. At the limit each publication may still have one batch on each partition. So no publication waits
for the end of another one."""

FETCH_PAUSE_US_MAX = 2_000_000
"""The longest pause before the master asks again for a missing batch. It begins with 50 ms, and doubles each time."""

CARRYINGS_MAX = 64
"""Maximum number of publications that are carried out on one partition at once, each for another writer."""

CARRYINGS_MISSING_MAX = 256
"""This many more may wait for staged batches on disks that are away. They do not count as carried out."""

WAITS_MAX = 64
"""Maximum number of requests for one publication that wait on one partition."""


def carry_out(broker: BrokerState, partition: Partition, event: CarryOut) -> None:
    """A publisher asks this master to append the rows of a publication that it read as DECIDED."""
    log = _led(partition)
    if log is None:
        text = "this broker is not the master of the open segment: it appended nothing"
        _refuse(broker, event.request, errors.NotServingError(text, retry_after_ms=50))
        return
    if stand(log.live_table.last(event.producer), event.sequence, event.batches.first_rows) is not Stand.SUPERSEDED:
        admission.note_asked(broker, log, event.producer)
    carrying = partition.carryings.get((event.producer, event.sequence))
    if carrying is None:
        missing = sum(each.is_missing for each in partition.carryings.values())
        if len(partition.carryings) - missing >= CARRYINGS_MAX or missing >= CARRYINGS_MISSING_MAX:
            text = f"{len(partition.carryings)} publications are carried out on this partition already: ask again later"
            _refuse(broker, event.request, errors.OverloadedError(text, retry_after_ms=200))
            return
        carrying = Carrying(event, log.no)
        partition.carryings = put(partition.carryings, carrying.key, carrying)
    elif len(carrying.waits) >= WAITS_MAX:
        text = f"{WAITS_MAX} requests wait for this publication already: ask again later"
        _refuse(broker, event.request, errors.OverloadedError(text, retry_after_ms=200))
        return
    carrying.waits = (*carrying.waits, Wait(event.request, event.deadline_us))
    _keep_looking(broker, partition)
    _go_on(broker, partition, carrying)


def look_again(broker: BrokerState, partition: Partition) -> None:
    """Time has passed: continue with each publication, and refuse the requests whose deadline has passed."""
    for carrying in list(partition.carryings.values()):
        now_us = broker.now.mono_us
        late = [wait for wait in carrying.waits if now_us >= wait.deadline_us]
        for wait in late:
            text = "not all rows of the publication are committed on this partition yet: ask again to continue"
            _refuse(broker, wait.request, errors.DeadlineExceededError(text))
        carrying.waits = tuple(wait for wait in carrying.waits if wait not in late)
        if carrying.waits:
            _go_on(broker, partition, carrying)
        else:
            _forget(broker, partition, carrying)
    if partition.carryings:
        _keep_looking(broker, partition)


def on_commit(broker: BrokerState, partition: Partition) -> None:
    """The commit, or the index that all members have flushed, has moved: continue with each publication."""
    for carrying in list(partition.carryings.values()):
        _go_on(broker, partition, carrying)


def fail_all(broker: BrokerState, partition: Partition, error: errors.SeriatimError) -> None:
    """The partition is gone: answer every request with this error."""
    for carrying in list(partition.carryings.values()):
        _end(broker, partition, carrying, error)


# ---- a step ---------------------------------------------------------------------------------------------


def _go_on(broker: BrokerState, partition: Partition, carrying: Carrying) -> None:
    log = _led(partition)
    if log is None or log.no != carrying.segment_no:
        text = f"segment {carrying.segment_no} has ended: ask the next master, which continues"
        _end(broker, partition, carrying, errors.SegmentMovedError(text, retry_after_ms=20))
        return
    _let_go(broker, log, carrying)
    here = stand(log.live_table.last(carrying.producer), carrying.sequence, carrying.rows)
    if here is Stand.CONTRADICTS:
        text = f"this partition has rows of publication {carrying.sequence} that are not in its manifest"
        _end(broker, partition, carrying, errors.CorruptionError(text))
        return
    if here is Stand.SUPERSEDED or (here is Stand.UNKNOWN and not carrying.is_decided):
        _ask_record(broker, partition, carrying)
        return
    number = max(here, carrying.passed) if isinstance(here, int) else carrying.passed
    number = _append_fetched(broker, partition, log, carrying, number)
    if number == len(carrying.batches):
        if _is_safe(log, carrying):
            _answer(broker, partition, log, carrying)
        return
    _fetch(broker, partition, log, carrying, number)


def _append_fetched(broker: BrokerState, partition: Partition, log: SegmentLog, carrying: Carrying, number: int) -> int:
    """Append the fetched batches from that number on; returns the number of the first one that is not appended."""
    while number < len(carrying.batches):
        if number in carrying.gone:
            if not carrying.is_decided:
                _ask_record(broker, partition, carrying)
                return number
            _pass_over(broker, partition, carrying, number)
        elif (fetched := carrying.fetched.get(number)) is None or not _may_append(
            broker, partition, log, carrying, fetched.batch
        ):
            return number
        else:
            carrying.fetched = drop(carrying.fetched, number)
            carrying.is_missing = False
            carrying.pause_us, carrying.due_us = FETCH_PAUSE_US, 0
            row = carrying.rows[number]
            header = published_header(
                fetched.batch.header, partition.id, carrying.producer, carrying.sequence, row, carrying.manifest
            )
            # If this disk has the staged batch, the slaves probably have it too: they are the same broker group.
            is_adopted = fetched.is_here and len(fetched.batch.body) >= broker.config.adopted_bytes_min
            place = carrying.batches[number] if is_adopted else None
            appended = appending.append_staged(broker, partition, log, header, fetched.batch, place)
            carrying.uncommitted = (*carrying.uncommitted, (appended.header.end_index, fetched.batch.size_bytes))
            if not row:
                carrying.first_offset = make_offset(log.no, appended.header.base_index)
        number += 1
        carrying.passed = number
    return number


def _pass_over(broker: BrokerState, partition: Partition, carrying: Carrying, number: int) -> None:
    """The disks with this staged batch are declared lost: continue after its rows. Only here may sequences have a gap.

    Rule `passes-over-what-is-lost` (I13). Without it:
      1. A publication is decided. Then all disks of a broker group with staged batches are declared lost.
      2. The master asks for these batches again and again. The publication never ends, and its writer waits for ever.
    """
    rows = carrying.batches[number].rows
    carrying.lost_rows += rows
    broker.out.note(
        "staged_rows_lost",
        partition.id,
        writer=carrying.writer,
        sequence=carrying.sequence,
        from_row=carrying.rows[number],
        rows=rows,
    )


def _may_append(broker: BrokerState, partition: Partition, log: SegmentLog, carrying: Carrying, batch: Batch) -> bool:
    """Whether a batch may be appended now. If not, `look_again` or `on_commit` tries again."""
    if not _takes_more(broker, partition, log, carrying):
        return False
    return not log.uncertain or appending.has_room(broker, log, batch.size_bytes)


def _takes_more(broker: BrokerState, partition: Partition, log: SegmentLog, carrying: Carrying) -> bool:
    """Whether the partition takes more batches of this publication now, whatever their size."""
    if partition.quiescence is not None:  # the master holds back new batches for a planned switch
        return False
    if disks.full_member(broker, log.record.members) is not None:
        broker.poll(0, TimerKind.ROOM, partition.id)
        return False
    return not log.live_table.has_pending(carrying.producer, WINDOW_BATCHES)


def _is_safe(log: SegmentLog, carrying: Carrying) -> bool:
    """Whether all rows are committed, and on every member's disk.

    Rule `answers-committed` (I12, P4): a master answers only when all rows are committed. Without it:
      1. The last rows are on the master's disk only. The publisher writes DONE.
      2. The master is lost, and the segment is sealed below these rows.
      3. No master appends them any more, because the publication is DONE.

    Rule `answers-flushed` (I12, P4): if the topic commits before it flushes, the commit is not enough. Without it:
      1. All rows are in the memory of both members. The publisher writes DONE.
      2. Both machines lose power.
      3. The rows are gone, although the program sent them at `replicated_flushed` and was answered ok.
    """
    last = log.live_table.last(carrying.producer)
    if last is None or last.epoch != carrying.sequence:
        return True
    segment_no, index = split_offset(last.offset)
    return segment_no != log.no or index + last.message_count <= log.flushed


# ---- fetching, and reading the record -------------------------------------------------------------------


def _fetch(broker: BrokerState, partition: Partition, log: SegmentLog, carrying: Carrying, number: int) -> None:
    """Fetch the next batches that are not here yet, unless nothing may be appended now."""
    if carrying.is_missing and broker.now.mono_us < carrying.due_us:
        return
    is_much = broker.carried_bytes >= CARRIED_BYTES_MAX
    if (is_much and carrying.held_bytes) or not _takes_more(broker, partition, log, carrying):
        return
    under_way = set(carrying.fetching.values())
    ahead = 1 if carrying.is_missing or is_much else FETCHED_AHEAD_MAX
    for wanted in range(number, min(number + ahead, len(carrying.batches))):
        if wanted not in carrying.fetched and wanted not in carrying.gone and wanted not in under_way:
            serial = broker.new_serial()
            carrying.fetching = put(carrying.fetching, serial, wanted)
            broker.out.emit(FetchStaged(serial, partition.id, carrying.batches[wanted]))


def on_fetched(broker: BrokerState, partition: Partition, event: StagedFetched) -> None:
    """A staged batch was fetched, or cannot be read now, or is gone for good."""
    carrying = next((each for each in partition.carryings.values() if event.serial in each.fetching), None)
    if carrying is None:
        return
    number = carrying.fetching[event.serial]
    carrying.fetching = drop(carrying.fetching, event.serial)
    if event.is_gone:
        carrying.gone = put(carrying.gone, number, True)
    # Rule `checks-staged` (P5): a staged batch is appended only if it is the one that the manifest names. Without it:
    # 1. A member has another batch at the place that the manifest names. 2. The master appends rows that the
    # publication does not have.
    elif event.batch is not None and is_as_staged(event.batch, carrying.batches[number], broker.checksum):
        carrying.fetched = put(carrying.fetched, number, Fetched(event.batch, event.is_here))
        _hold(broker, carrying, event.batch.size_bytes)
    else:  # perhaps another member has the batch that the manifest names
        _missed(broker, partition, carrying, number, differs=event.batch is not None)
        return
    _go_on(broker, partition, carrying)


def _missed(broker: BrokerState, partition: Partition, carrying: Carrying, number: int, *, differs: bool) -> None:
    """A batch cannot be read now: ask again after a pause.

    Until then the batches that were fetched ahead are let go, and those that are still on their way are ignored.
    """
    if not carrying.is_missing:
        staged = carrying.batches[number]
        broker.out.note(
            "staged_batch_differs" if differs else "staged_batch_missing",
            partition.id,
            writer=carrying.writer,
            sequence=carrying.sequence,
            stage_partition=staged.partition,
            offset=staged.offset,
        )
    carrying.is_missing = True
    _hold(broker, carrying, -sum(each.batch.size_bytes for each in carrying.fetched.values()))
    carrying.fetched = carrying.fetching = NOTHING
    carrying.due_us = broker.now.mono_us + carrying.pause_us
    carrying.pause_us = min(2 * carrying.pause_us, FETCH_PAUSE_US_MAX)


def _hold(broker: BrokerState, carrying: Carrying, size_bytes: int) -> None:
    """Count bytes of staged batches in memory; negative if they are let go."""
    carrying.held_bytes += size_bytes
    broker.carried_bytes += size_bytes
    assert carrying.held_bytes >= 0, "only batches that were held are let go"


def _let_go(broker: BrokerState, log: SegmentLog, carrying: Carrying) -> None:
    """Count the batches that are committed by now as let go."""
    while carrying.uncommitted and carrying.uncommitted[0][0] <= log.commit:
        _hold(broker, carrying, -carrying.uncommitted[0][1])
        carrying.uncommitted = carrying.uncommitted[1:]


def _ask_record(broker: BrokerState, partition: Partition, carrying: Carrying) -> None:
    if not carrying.asked:
        carrying.asked = broker.new_serial()
        broker.out.emit(ReadWriter(carrying.asked, partition.id, carrying.incarnation, carrying.writer))


def on_writer_read(broker: BrokerState, partition: Partition, event: WriterRead) -> None:
    """The coordinator gave the writer's record, or did not answer."""
    carrying = next((each for each in partition.carryings.values() if each.asked == event.serial), None)
    if carrying is None:
        return
    carrying.asked = 0
    if event.failed:
        return  # `look_again` asks again
    record = event.record
    if record is None or not record.has_decided(carrying.producer, carrying.sequence, carrying.manifest):
        text = f"publication {carrying.sequence} of writer {carrying.writer!r} is not decided, or is done already"
        _end(broker, partition, carrying, errors.PreconditionError(text))
        return
    # Rule `later-decision-lost` (P3, ALARM): a later publication of the writer is decided only once this one is DONE.
    # Without it:
    #   1. Publications 6 and 7 are done. The coordinator is restored as it was when 5 was the last one.
    #   2. The program opens its writer, is sent 5, and publishes 6 with other rows than the first time.
    #   3. The master finds 7 in its table, and answers that all rows of 6 are here. The program is answered ok.
    log = _led(partition)
    last = log.live_table.last(carrying.producer) if log is not None else None
    if last is not None and last.epoch > carrying.sequence:
        lost_decisions.begin(
            broker,
            lost_decisions.WRITERS,
            f"its record of writer {carrying.writer} says that publication {carrying.sequence} is under way, and this "
            f"broker has rows of publication {last.epoch}",
        )
        _end(broker, partition, carrying, errors.CoordinatorBehindError(lost_decisions.reason(broker)))
        return
    carrying.is_decided = True
    _go_on(broker, partition, carrying)


# ---- the end --------------------------------------------------------------------------------------------


def _answer(broker: BrokerState, partition: Partition, log: SegmentLog, carrying: Carrying) -> None:
    first = carrying.first_offset
    if first is None:
        entries = log.live_table.entries(carrying.producer)
        named = [entry for entry in entries if (entry.epoch, entry.base_sequence) == (carrying.sequence, 0)]
        first = named[0].offset if named else None
    for wait in carrying.waits:
        broker.out.emit(
            CarriedOut(
                wait.request, first, carrying.rows[-1], carrying.lost_rows, None, admission.is_crowded(broker, log)
            )
        )
    _forget(broker, partition, carrying)


def _end(broker: BrokerState, partition: Partition, carrying: Carrying, error: errors.SeriatimError) -> None:
    for wait in carrying.waits:
        _refuse(broker, wait.request, error)
    _forget(broker, partition, carrying)


def _refuse(broker: BrokerState, request: int, error: errors.SeriatimError) -> None:
    broker.out.emit(CarriedOut(request, None, 0, 0, error))


def _forget(broker: BrokerState, partition: Partition, carrying: Carrying) -> None:
    _hold(broker, carrying, -carrying.held_bytes)
    partition.carryings = drop(partition.carryings, carrying.key)


def _keep_looking(broker: BrokerState, partition: Partition) -> None:
    broker.poll(broker.config.retry_us, TimerKind.CARRYING, partition.id)


def _led(partition: Partition) -> SegmentLog | None:
    """The log of the open segment, if this member is its master and takes batches."""
    log = partition.open_log()
    return log if log is not None and log.active and log.unbroken else None
