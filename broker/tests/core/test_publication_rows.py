"""Carrying out: what a master appends of a publication, where it continues, and when it says that all is committed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_api.batch import FLAG_KEYED, FLAG_PUBLISH, FLAG_STAGED, BatchHeader
from seriatim_api.ids import PartitionId, make_offset
from seriatim_api.publications import PRODUCER_MARK, STAGE_TOPIC, StagedBatch, StagedBatches
from seriatim_broker.core.control.rebuild import known_writers
from seriatim_broker.core.peers import lost_decisions
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import Batch, PutBatch
from seriatim_broker.core.values.positions import Place
from seriatim_broker.core.values.producers import (
    WINDOW_BATCHES,
    Entry,
    ProducerTable,
    pack_table,
    pack_window,
)
from seriatim_broker.core.values.writers import ManifestPlace, WriterRecord, WriterState
from seriatim_broker.core.writing import publication_rows
from seriatim_broker.core.writing.publication_plan import Stand, is_as_staged, stand
from seriatim_broker.core.writing.publication_rows import CARRYINGS_MAX, FETCHED_AHEAD_MAX

from .support import (
    M00,
    M01,
    M10,
    SECOND,
    Bench,
    P,
    attempt,
    checksum,
    filled,
    first_chain,
    header,
    opened_master,
    sealed_chain,
    unsettled_chain,
)

WRITER = b"w" * 8 + PRODUCER_MARK
MANIFEST = b"m" * 16
CHUNK = b"c" * 16
STAGE = 90


def staged_batch(number: int, rows: int = 2, *, chunk: bytes = CHUNK, flags: int = FLAG_STAGED) -> Batch:
    """A batch as it is in the stage topic."""
    body = b"rows %d" % number
    sent = header(
        1000 * number, rows, 0, b"t" * 16, body,
        partition=STAGE, first_timestamp_ms=5, last_timestamp_ms=6, flags=flags | FLAG_KEYED, key_hash=77, stage=chunk,
    )  # fmt: skip
    return Batch(sent._replace(segment=1, base_index=100 * number), body)


def place_of(number: int, rows: int = 2) -> StagedBatch:
    """Where that batch is, as a manifest says."""
    return StagedBatch(STAGE, rows, make_offset(1, 100 * number), CHUNK)


def record_of(sequence: int = 7, state: WriterState = WriterState.DECIDED, manifest: bytes = MANIFEST) -> WriterRecord:
    """The writer's record."""
    place = ManifestPlace(PartitionId(STAGE), (1,), 1, 1, manifest)
    return WriterRecord(WRITER, "orders", 1, "", state, sequence, place)


class Carry:
    """A master that is asked to carry out."""

    def __init__(self, bench: Bench | None = None) -> None:
        self.bench = bench or opened_master()
        self.requests = 1000
        self.answered: set[int] = set()

    def ask(self, *rows: int, sequence: int = 7, writer: bytes = WRITER) -> int:
        """A publisher asks for a publication with batches of this many rows; returns the request."""
        self.requests += 1
        batches = StagedBatches(place_of(number, count) for number, count in enumerate(rows))
        self.bench.do(
            ev.CarryOut(
                self.requests, P, "ab" * 16, "nightly", writer, sequence, MANIFEST, batches,
                self.bench.now_us + 5 * SECOND,
            )
        )  # fmt: skip
        return self.requests

    def read(self, record: WriterRecord | None, *, failed: bool = False) -> None:
        """The coordinator answers the newest question for the record."""
        question = self.bench.all(fx.ReadWriter)[-1]
        self.bench.do(ev.WriterRead(question.serial, P, record, failed))

    def fetched(self, *, gone: tuple[int, ...] = (), missing: tuple[int, ...] = (), is_here: bool = False) -> list[int]:
        """All staged batches that were asked for come; returns their numbers."""
        numbers: list[int] = []
        while wanted := [each for each in self.bench.all(fx.FetchStaged) if each.serial not in self.answered]:
            effect = wanted[0]
            self.answered.add(effect.serial)
            number = (effect.staged.offset & 0xFFFF) // 100
            numbers.append(number)
            batch = None if number in gone + missing else staged_batch(number, effect.staged.rows)
            self.bench.do(ev.StagedFetched(effect.serial, P, batch, number in gone, is_here))
        return numbers

    def commit(self) -> None:
        """Both disks have all that was appended."""
        self.bench.persist()
        self.bench.ack(M01, self.bench.part.logs[self.bench.part.chain.open_segment.no].tail)  # type: ignore[union-attr]

    def answer(self, request: int) -> fx.CarriedOut | None:
        """What the request was answered."""
        found = [effect for effect in self.bench.all(fx.CarriedOut) if effect.request == request]
        assert len(found) <= 1, "answered once"
        return found[0] if found else None

    def appended(self) -> list[BatchHeader]:
        """Headers of what was appended for the writer."""
        return [put.batch.header for put in self.bench.writes(PutBatch) if put.batch.header.producer == WRITER]


def asked(*rows: int, bench: Bench | None = None) -> tuple[Carry, int]:
    """A publication is asked for, and the record says that it is decided."""
    carry = Carry(bench)
    request = carry.ask(*rows)
    carry.read(record_of())
    return carry, request


# ---- the plan -------------------------------------------------------------------------------------------


def test_the_own_table_says_where_to_go_on() -> None:
    rows = StagedBatches([place_of(0, 3), place_of(1, 2)]).first_rows
    assert list(rows) == [0, 3, 5]
    assert stand(None, 7, rows) is Stand.UNKNOWN
    assert stand(Entry(6, 0, 9, 1), 7, rows) == 0
    assert stand(Entry(7, 0, 3, 1), 7, rows) == 1
    assert stand(Entry(7, 3, 2, 1), 7, rows) == 2, "all are here"
    assert stand(Entry(8, 0, 1, 1), 7, rows) is Stand.SUPERSEDED
    assert stand(Entry(7, 0, 2, 1), 7, rows) is Stand.CONTRADICTS


@pytest.mark.parametrize(
    "wrong",
    [
        staged_batch(0, chunk=b"x" * 16),
        staged_batch(0, rows=3),
        staged_batch(1),
        staged_batch(0)._replace(header=staged_batch(0).header._replace(partition=STAGE + 1)),
        staged_batch(0, flags=0),
        staged_batch(0, flags=FLAG_STAGED | FLAG_PUBLISH),
        staged_batch(0)._replace(body=b"rows 1"),
        staged_batch(0)._replace(body=b"rows 0 and more"),
    ],
)
def test_only_what_the_manifest_names_is_taken(wrong: Batch) -> None:
    assert is_as_staged(staged_batch(0), place_of(0), checksum)
    assert not is_as_staged(wrong, place_of(0), checksum)


# ---- the work -------------------------------------------------------------------------------------------


def test_rows_are_appended_in_order_as_they_were_cut_under_the_writers_numbers() -> None:
    carry, request = asked(2, 3, 1)
    carry.fetched()
    headers = carry.appended()
    assert [(header.producer_epoch, header.base_sequence, header.message_count) for header in headers] == [
        (7, 0, 2),
        (7, 2, 3),
        (7, 5, 1),
    ]
    for made in headers:
        assert made.flags == FLAG_PUBLISH | FLAG_KEYED
        assert made.stage == MANIFEST
        assert (made.partition, made.key_hash, made.first_timestamp_ms) == (P, 77, 5)
    assert carry.bench.sent(msg.Replicate, M01), "the follower has them at once"
    carry.commit()
    assert carry.answer(request) == fx.CarriedOut(request, make_offset(1, 0), 6, 0, None)
    assert not carry.bench.part.carryings


def test_batches_that_come_out_of_order_wait_for_those_before() -> None:
    carry, _ = asked(1, 1, 1)
    for effect in carry.bench.all(fx.FetchStaged)[::-1]:
        number = (effect.staged.offset & 0xFFFF) // 100
        carry.bench.do(ev.StagedFetched(effect.serial, P, staged_batch(number, 1)))
    assert [header.base_sequence for header in carry.appended()] == [0, 1, 2]


def test_the_answer_waits_for_the_commit() -> None:
    carry, request = asked(2)
    carry.fetched()
    assert carry.answer(request) is None
    carry.bench.persist()
    assert carry.answer(request) is None, "the other member does not have it"
    carry.bench.ack(M01, 2)
    assert carry.answer(request) is not None


def test_the_answer_waits_for_the_disks_where_the_topic_commits_without_them() -> None:
    """Both members have all rows, and may lose their power yet."""
    carry, request = asked(2, 3, bench=opened_master(flush=False))
    carry.fetched()
    bench = carry.bench
    bench.hear(M01, msg.ReplicateAck(P, 1, attempt(1), 5, 0))
    assert bench.part.logs[1].commit == 5
    bench.persist()
    assert carry.answer(request) is None
    bench.hear(M01, msg.ReplicateAck(P, 1, attempt(1), 5, 5))
    assert carry.answer(request) == fx.CarriedOut(request, make_offset(1, 0), 5, 0, None)


def test_nothing_is_appended_before_the_record_says_decided() -> None:
    carry = Carry()
    request = carry.ask(2)
    assert not carry.bench.all(fx.FetchStaged)
    carry.read(None, failed=True)
    assert carry.answer(request) is None
    carry.bench.wait(200_000, (M01,))
    carry.read(record_of())
    carry.fetched()
    assert len(carry.appended()) == 1


@pytest.mark.parametrize(
    "record",
    [
        None,
        record_of(state=WriterState.DONE),
        record_of(sequence=8),
        record_of(manifest=b"x" * 16),
        replace(record_of(), producer=b"v" * 16),
    ],
)
def test_what_is_not_decided_is_refused(record: WriterRecord | None) -> None:
    carry = Carry()
    request = carry.ask(2)
    carry.read(record)
    answer = carry.answer(request)
    assert answer is not None
    assert isinstance(answer.error, errors.PreconditionError)
    assert not carry.bench.part.carryings
    assert not carry.appended()


def test_a_repeat_appends_nothing_and_needs_no_record() -> None:
    carry, first = asked(2, 1)
    carry.fetched()
    carry.commit()
    assert carry.answer(first) is not None
    carry.bench.clear()
    again = carry.ask(2, 1)
    assert carry.answer(again) == fx.CarriedOut(again, make_offset(1, 0), 3, 0, None)
    assert not carry.bench.all(fx.ReadWriter)
    assert not carry.bench.all(fx.FetchStaged)


def test_two_who_ask_are_both_answered_and_all_is_appended_once() -> None:
    carry, first = asked(2)
    second = carry.ask(2)
    carry.fetched()
    carry.commit()
    assert carry.answer(first) is not None
    assert carry.answer(second) is not None
    assert len(carry.appended()) == 1


def test_an_earlier_publication_has_nothing_left_to_append() -> None:
    carry, _ = asked(2)
    carry.fetched()
    carry.commit()
    carry.bench.clear()
    early = carry.ask(1, 1, sequence=6)
    assert carry.answer(early) is None, "the record says whether it is done"
    carry.read(record_of(7, WriterState.DONE))
    answer = carry.answer(early)
    assert answer is not None
    assert isinstance(answer.error, errors.PreconditionError)
    assert not carry.appended()
    assert not lost_decisions.reason(carry.bench.core.state)


def test_a_decision_before_one_that_is_here_proves_an_older_copy() -> None:
    """A later publication is decided only once the one before is done. So the coordinator lost the later decision."""
    carry, _ = asked(2)
    carry.fetched()
    carry.commit()
    carry.bench.clear()
    request = carry.ask(1, 1, sequence=6)
    carry.read(record_of(6))
    answer = carry.answer(request)
    assert answer is not None
    assert isinstance(answer.error, errors.CoordinatorBehindError)
    assert "publication 6 is under way, and this broker has rows of publication 7" in answer.error.message
    assert not carry.appended()
    carry.bench.do(ev.CoordinatorRebuilt())
    assert not lost_decisions.reason(carry.bench.core.state)


def test_what_a_master_has_of_a_writer_is_told_to_a_rebuild() -> None:
    carry, _ = asked(2, 3)
    carry.fetched()
    carry.commit()
    (known,) = known_writers(carry.bench.part)
    assert (known.producer, known.sequence, known.rows) == (WRITER, 7, 5)
    assert known.append_time_ms > 0


def test_the_next_publication_begins_at_row_0() -> None:
    carry, _ = asked(2)
    carry.fetched()
    carry.commit()
    carry.bench.clear()
    carry.answered.clear()
    later = carry.ask(3, sequence=8)
    carry.fetched()
    carry.commit()
    assert [(header.producer_epoch, header.base_sequence) for header in carry.appended()] == [(8, 0)]
    assert carry.answer(later) is not None


def test_the_next_master_goes_on_where_its_own_table_says() -> None:
    window = pack_window([Entry(7, 0, 2, make_offset(1, 0))], 1)
    bench = Bench(M10)
    chain = sealed_chain(first_chain(), 2, 99)
    bench.open(chain, table=pack_table({WRITER: window}))
    bench.clear()
    carry = Carry(bench)
    carry.ask(2, 3)
    assert not bench.all(fx.ReadWriter), "it knows the writer"
    assert carry.fetched() == [1]
    assert [(header.base_sequence, header.message_count) for header in carry.appended()] == [(2, 3)]


def test_a_master_with_an_empty_table_begins_at_row_0_once_it_read_the_record() -> None:
    bench = Bench(M10)
    bench.open(unsettled_chain(first_chain()))
    bench.clear()
    carry, _ = asked(2, 3, bench=bench)
    assert carry.fetched() == [0, 1]
    assert [header.base_sequence for header in carry.appended()] == [0, 2]


def test_a_table_that_contradicts_the_manifest_ends_the_work() -> None:
    carry, _ = asked(2)
    carry.fetched()
    carry.commit()
    request = carry.ask(1, 2)
    answer = carry.answer(request)
    assert answer is not None
    assert isinstance(answer.error, errors.CorruptionError)


def test_who_is_not_the_master_refuses() -> None:
    carry = Carry(Bench())
    request = carry.ask(1)
    answer = carry.answer(request)
    assert answer is not None
    assert isinstance(answer.error, errors.NotServingError)


def test_a_fence_ends_the_work() -> None:
    carry, request = asked(2, 2)
    _fence(carry.bench)
    carry.fetched()
    assert not carry.appended()
    answer = carry.answer(request)
    assert answer is not None
    assert isinstance(answer.error, errors.SegmentMovedError)


def test_the_next_segment_is_other_work_though_its_master_is_the_same() -> None:
    """What the record said is known for one segment: in the next one it may be done already."""
    carry, request = asked(2, 2)
    _fence(carry.bench)
    carry.bench.persist()
    carry.bench.open(sealed_chain(first_chain(), 0, 0, (M00, M01)))
    carry.bench.follow(M01, no=2)
    carry.fetched()
    assert not carry.appended()
    answer = carry.answer(request)
    assert answer is not None
    assert isinstance(answer.error, errors.SegmentMovedError)


def _fence(bench: Bench) -> None:
    bench.hear(M01, filled(msg.FenceRequest, partition=P, segment_no=1, switch=b"s" * 16, switch_attempt=attempt(1)))


def test_at_most_a_window_is_uncommitted() -> None:
    count = WINDOW_BATCHES + 5
    carry, _ = asked(*[1] * count)
    carry.fetched()
    assert len(carry.appended()) == WINDOW_BATCHES
    carry.commit()
    carry.fetched()
    assert len(carry.appended()) == count


def test_few_batches_are_fetched_ahead() -> None:
    carry, _ = asked(*[1] * 20)
    assert len(carry.bench.all(fx.FetchStaged)) == FETCHED_AHEAD_MAX


def test_other_producers_append_between_the_batches_of_a_publication() -> None:
    carry, _ = asked(1, 1)
    first, second = carry.bench.all(fx.FetchStaged)
    carry.bench.do(ev.StagedFetched(first.serial, P, staged_batch(0, 1)))
    other = carry.bench.append(0, starts=True)
    carry.bench.do(ev.StagedFetched(second.serial, P, staged_batch(1, 1)))
    producers = [put.batch.header.producer for put in carry.bench.writes(PutBatch)]
    assert [producer == WRITER for producer in producers] == [True, False, True]
    carry.commit()
    assert other in carry.bench.accepted()


def test_members_that_are_behind_delay_the_work() -> None:
    size = len(staged_batch(0).body) + 192
    bench = opened_master(flush=False, config=BrokerConfig(unflushed_bytes_max=2 * size))
    carry, _ = asked(1, 1, 1, bench=bench)
    carry.fetched()
    assert len(carry.appended()) == 2
    carry.commit()
    bench.wait(100_000, (M01,))
    assert len(carry.appended()) == 3


def test_a_full_disk_delays_the_work() -> None:
    carry, request = asked(1)
    carry.bench.do(ev.DiskRoom(True))
    carry.fetched()
    assert not carry.appended()
    assert carry.answer(request) is None
    carry.bench.do(ev.DiskRoom(False))
    carry.bench.wait(100_000, (M01,))
    assert len(carry.appended()) == 1


def test_a_planned_switch_holds_the_work_back() -> None:
    carry, _ = asked(1, 1)
    carry.bench.hear(M01, filled(msg.QuiesceRequest, partition=P, segment_no=1, switch=b"s" * 16))
    carry.fetched()
    assert not carry.appended()


def test_a_staged_batch_that_no_member_gives_is_asked_for_again() -> None:
    carry, _ = asked(1)
    carry.fetched(missing=(0,))
    assert not carry.appended()
    carry.bench.wait(100_000, (M01,))
    carry.fetched()
    assert len(carry.appended()) == 1


def test_what_waits_for_a_missing_batch_holds_no_others() -> None:
    carry, _ = asked(1, 1, 1)
    carry.fetched(missing=(0,))
    (carrying,) = carry.bench.part.carryings.values()
    assert not carrying.fetched
    carry.bench.clear()
    carry.answered.clear()
    carry.bench.wait(100_000, (M01,))
    assert carry.fetched(missing=(0,)) == [0], "and asks for that one only"
    carry.bench.clear()
    carry.answered.clear()
    carry.bench.wait(200_000, (M01,))
    assert carry.fetched() == [0, 1, 2]
    assert len(carry.appended()) == 3


def test_a_batch_that_cannot_be_had_is_asked_for_less_and_less_often_and_told_once() -> None:
    carry = Carry()
    for sequence in (7, 9):  # the second begins with small pauses again
        carry.bench.clear()
        carry.answered.clear()
        carry.ask(*([1] * 9), sequence=sequence)
        carry.read(record_of(sequence))
        asked_us: list[int] = []
        for _ in range(450):  # 4.5 s; who asked waits for 5
            asked_us += [carry.bench.now_us for _ in carry.fetched(missing=tuple(range(9)))]
            carry.bench.wait(10_000, (M01,))
        assert 6 <= len(asked_us) <= 6 + FETCHED_AHEAD_MAX
        assert asked_us[-1] - asked_us[-2] > SECOND
        assert [note.name for note in carry.bench.all(fx.Note)] == ["staged_batch_missing"]
        carry.bench.wait(SECOND, (M01,))
        assert not carry.bench.part.carryings


def test_publications_that_wait_for_disks_that_are_away_take_no_turn_from_others() -> None:
    carry = Carry()
    for number in range(CARRYINGS_MAX + 1):
        request = carry.ask(1, sequence=number)
        carry.read(record_of(number))
        carry.fetched(missing=(0,))
        assert carry.answer(request) is None, f"publication {number} is taken"
    requests = [carry.ask(1, sequence=100 + number) for number in range(CARRYINGS_MAX + 1)]
    refused = carry.answer(requests.pop())
    assert refused is not None
    assert isinstance(refused.error, errors.OverloadedError), "of those that continue there are this many at once"
    assert not any(map(carry.answer, requests))


def test_the_memory_of_a_broker_for_publications_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication_rows, "CARRIED_BYTES_MAX", 3 * staged_batch(0).size_bytes)
    carry, request = asked(*([1] * 9))
    broker = carry.bench.core.state
    carry.fetched()
    assert len(carry.appended()) == 6, "the limit, and what was asked for before it was reached"
    assert broker.carried_bytes == 6 * staged_batch(0).size_bytes
    other = carry.ask(1, 1, sequence=8)
    assert carry.fetched() == [0], "another one has one batch all the same, and one only"
    for _ in range(6):
        carry.commit()
        carry.fetched()
    carry.read(record_of(8))
    assert carry.answer(request) is not None
    assert carry.answer(other) is not None
    assert (broker.carried_bytes, len(carry.bench.part.carryings)) == (0, 0)
    carry.ask(1, 1, sequence=9)
    carry.fetched()
    assert broker.carried_bytes
    carry.bench.wait(6 * SECOND, (M01,))
    assert broker.carried_bytes == 0, "who asked is gone, and with it what was held"


def test_nothing_is_fetched_while_nothing_may_be_appended() -> None:
    carry = Carry()
    carry.bench.do(ev.DiskRoom(True))
    carry.ask(1)
    carry.read(record_of())
    assert not carry.bench.all(fx.FetchStaged)
    carry.bench.do(ev.DiskRoom(False))
    carry.bench.wait(100_000, (M01,))
    carry.fetched()
    assert len(carry.appended()) == 1


def test_a_staged_batch_that_is_another_one_is_not_appended() -> None:
    carry, _ = asked(1)
    (effect,) = carry.bench.all(fx.FetchStaged)
    carry.answered.add(effect.serial)
    carry.bench.do(ev.StagedFetched(effect.serial, P, staged_batch(0, 1, chunk=b"x" * 16)))
    assert not carry.appended()
    assert [note.name for note in carry.bench.all(fx.Note)] == ["staged_batch_differs"]
    carry.bench.wait(100_000, (M01,))
    carry.fetched()
    assert len(carry.appended()) == 1


def test_staged_rows_that_are_lost_are_passed_over_and_told() -> None:
    carry, request = asked(2, 3, 1)
    carry.fetched(gone=(1,))
    assert [(header.base_sequence, header.message_count) for header in carry.appended()] == [(0, 2), (5, 1)]
    carry.commit()
    answer = carry.answer(request)
    assert answer is not None
    assert (answer.rows, answer.lost_rows) == (6, 3)
    (note,) = [note for note in carry.bench.all(fx.Note) if note.name == "staged_rows_lost"]
    assert dict(note.fields) == {"writer": "nightly", "sequence": 7, "from_row": 2, "rows": 3}


def test_all_rows_may_be_lost() -> None:
    carry, request = asked(2, 3)
    carry.fetched(gone=(0, 1))
    answer = carry.answer(request)
    assert answer is not None
    assert answer.lost_rows == 5
    assert not carry.appended()


def test_staged_rows_that_are_gone_are_passed_over_only_if_the_record_says_decided() -> None:
    """They may be gone because all was done long ago."""
    carry, _ = asked(1)
    carry.fetched()
    carry.commit()
    carry.bench.clear()
    carry.answered.clear()
    request = carry.ask(1, 1, sequence=8)
    assert not carry.bench.all(fx.ReadWriter), "the table knows the writer"
    carry.fetched(gone=(0, 1))
    carry.read(record_of(8, WriterState.DONE))
    answer = carry.answer(request)
    assert answer is not None
    assert isinstance(answer.error, errors.PreconditionError)


def test_who_waits_too_long_is_told_and_nothing_is_left() -> None:
    carry, request = asked(1)
    carry.bench.wait(6 * SECOND, (M01,))
    answer = carry.answer(request)
    assert answer is not None
    assert isinstance(answer.error, errors.DeadlineExceededError)
    assert not carry.bench.part.carryings
    carry.bench.clear()
    carry.bench.wait(2 * SECOND, (M01,))
    assert not carry.bench.all(fx.FetchStaged)


def test_a_topic_that_is_deleted_ends_the_work() -> None:
    carry, request = asked(1)
    carry.bench.do(ev.DropPartitionData(P))
    answer = carry.answer(request)
    assert answer is not None
    assert isinstance(answer.error, errors.UnknownTopicError)


OTHERS = [b"writer %d" % number + PRODUCER_MARK for number in range(5)]


class Crowd(Carry):
    """A master that remembers few writers, and protects each for six seconds."""

    def __init__(self, room: int) -> None:
        config = BrokerConfig(producers_max=4 * room, producer_protect_us=SECOND)
        super().__init__(opened_master(config=config))
        self.table.limit = 4 * room

    @property
    def table(self) -> ProducerTable:
        """Of the open segment."""
        return self.bench.part.logs[1].live_table

    def publish(self, writer: bytes) -> fx.CarriedOut:
        """A decided publication of one batch is carried out."""
        request = self.ask(1, writer=writer)
        if self.table.last(writer) is None:
            self.read(replace(record_of(), producer=writer))
        self.fetched()
        self.commit()
        found = self.answer(request)
        assert found is not None
        assert found.error is None
        return found

    def known(self) -> list[bytes]:
        """The writers that the table knows, the one that goes first at the beginning."""
        return [producer for producer, _ in self.table.items()]


def test_decided_writers_are_let_in_above_the_limit() -> None:
    """Rule `decided-are-let-in`: none of them waits for the place of another one, and the room gets smaller again."""
    crowd = Crowd(room=1)
    assert not crowd.publish(OTHERS[0]).is_crowded
    for writer in OTHERS[1:4]:
        assert crowd.publish(writer).is_crowded, "nothing more is decided for new writers"
    assert crowd.known() == OTHERS[:4]
    crowd.bench.wait(60 * SECOND, (M01,))
    assert not crowd.publish(OTHERS[4]).is_crowded
    assert crowd.known() == OTHERS[2:5], "two went for the one that came"


def test_writer_that_is_asked_for_is_not_pushed_out() -> None:
    """Rule `asked-is-heard`: it is spared, and the next one goes. No publisher asks any more: it goes, too."""
    crowd = Crowd(room=2)
    for writer in OTHERS[:2]:
        crowd.publish(writer)
    for _ in range(3):
        crowd.bench.wait(3 * SECOND, (M01,))
        crowd.publish(OTHERS[0])
    assert not crowd.publish(OTHERS[2]).is_crowded
    assert crowd.known() == [OTHERS[0], OTHERS[2]]
    put = crowd.bench.writes(PutBatch)[-1]
    assert put.batch.header.spared == 1
    crowd.bench.wait(7 * SECOND, (M01,))
    crowd.publish(OTHERS[3])
    assert crowd.known() == [OTHERS[2], OTHERS[3]]


def test_request_for_an_earlier_publication_spares_no_writer() -> None:
    """It was on its way for long: the publication is done, because a later one of the writer is here."""
    crowd = Crowd(room=1)
    crowd.ask(1, sequence=8, writer=OTHERS[0])
    crowd.read(replace(record_of(8), producer=OTHERS[0]))
    crowd.fetched()
    crowd.commit()
    crowd.bench.wait(7 * SECOND, (M01,))
    crowd.ask(1, sequence=7, writer=OTHERS[0])
    crowd.publish(OTHERS[1])
    assert crowd.known() == [OTHERS[1]]


def test_full_table_refuses_no_decided_writer() -> None:
    crowd = Crowd(room=1)
    crowd.bench.core.state.producer_bytes = crowd.bench.core.state.config.producers_bytes_max
    assert crowd.publish(OTHERS[0]).rows == 1


# ---- what clients may not send --------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [FLAG_PUBLISH, FLAG_STAGED, FLAG_PUBLISH | FLAG_STAGED])
def test_a_client_publishes_and_stages_nothing_in_a_topic(flags: int) -> None:
    bench = opened_master()
    bench.do(ev.Append(1, P, header(flags=flags), b"body", 1, True, ev.AckLevel.REPLICATED_FLUSHED))
    assert isinstance(bench.refused()[1], errors.BadRequestError)
    assert not bench.writes(PutBatch)


@pytest.mark.parametrize(
    ("flags", "is_taken"), [(0, False), (FLAG_PUBLISH, False), (FLAG_STAGED, True), (FLAG_PUBLISH | FLAG_STAGED, True)]
)
def test_the_stage_topic_takes_what_is_staged(flags: int, is_taken: bool) -> None:
    bench = Bench()
    bench.open(replace(first_chain(), topic=STAGE_TOPIC))
    bench.follow(M01)
    bench.do(ev.Append(1, P, header(flags=flags), b"body", 1, True, ev.AckLevel.REPLICATED_FLUSHED))
    assert (1 not in bench.refused()) is is_taken


@pytest.mark.parametrize("epoch", [0, 7, (1 << 32) - 1])
def test_no_client_sends_under_a_writers_id(epoch: int) -> None:
    """If a client could, its batch would count as rows that were never appended."""
    carry = Carry()
    assert isinstance(carry.bench.refusal(0, starts=True, producer=WRITER, epoch=epoch), errors.BadRequestError)
    asked_for = carry.ask(2, 3)
    carry.read(record_of())
    carry.fetched()
    carry.commit()
    answer = carry.answer(asked_for)
    assert answer is not None
    assert (answer.rows, answer.error) == (5, None)
    assert sum(header.message_count for header in carry.appended()) == 5


# ---- what is staged is read by brokers only --------------------------------------------------------------


def staged_here() -> Bench:
    """A master of a stage partition, with a batch."""
    bench = Bench()
    bench.open(replace(first_chain(), topic=STAGE_TOPIC))
    bench.follow(M01)
    return bench


@pytest.mark.parametrize("staged", [False, True])
def test_what_is_staged_is_no_range_for_clients(staged: bool) -> None:
    bench = staged_here()
    bench.do(ev.ReadRange(5, P, Place(1, 0), Place(1, 1), 1 << 20, True, bench.now_us + SECOND, staged=staged))
    errors_told = [type(effect.error) for effect in bench.all(fx.RangeRead)]
    assert (errors_told == [errors.BadRequestError]) is not staged


def test_what_is_staged_has_no_consumers() -> None:
    bench = staged_here()
    bench.do(ev.ConsumerJoin(1, 1, P, "audit", "c", ev.StartPosition.EARLIEST, False))
    bench.do(ev.CursorRead(P, "audit", None, 5))
    (refused,) = bench.delivered(fx.SubscriptionRefused)
    assert isinstance(refused.error, errors.BadRequestError)
    assert not bench.all(fx.WriteCursor)
    assert not bench.part.consumer_groups
