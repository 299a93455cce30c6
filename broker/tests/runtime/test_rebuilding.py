"""A plan to rebuild the coordinator: what is said, and refused, because brokers did not say what they know."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import MemberId, PartitionId, TopicIncarnation
from seriatim_api.publications import PRODUCER_MARK, RowLayout
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.control.rebuild import KnownWriter
from seriatim_broker.core.values.chain import Chain, Opening, create
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.deleted import NONE_DELETED
from seriatim_broker.core.values.events import CursorRecord
from seriatim_broker.core.values.keyed import SETTINGS_DEFAULT
from seriatim_broker.core.values.log import CursorState
from seriatim_broker.core.values.messages import FORMS
from seriatim_broker.core.values.writers import WriterRecord, WriterState, name_digest
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.rpc.servicers.rebuild_reports import tell
from seriatim_broker.runtime.coordinator.group_epochs import EpochFloor
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.records import (
    cursor_from_value,
    cursor_to_value,
    member_to_record,
    put_deleted_partitions,
    writer_from_value,
    writer_to_record,
)
from seriatim_broker.runtime.membership.registration import NEVER_SEEN, Identity, Place
from seriatim_broker.runtime.rebuild import Answers, Plan, Told, carry_out, make_plan
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

pytestmark = pytest.mark.asyncio

KEYS = Keys("c")
NOW_MS = 1_700_000_000_000
P = PartitionId(7)
M00, M01, M10, M11 = (MemberId(f"g{group}-{slot}", f"{group}{slot}" * 16) for group in (0, 1) for slot in (0, 1))


def chain_on(group: str, members: tuple[MemberId, ...]) -> Chain:
    opening = Opening(b"attempt---------", group, members, 1, False)
    return create(P, "orders", 0, True, ("g0", "g1"), opening, 0)


FIRST = chain_on("g0", (M00, M01))
SECOND = chain_on("g1", (M10, M11))


def record(member: MemberId, run: int = 1) -> records_pb2.MemberRecord:
    group, _, slot = member.broker.partition("-")
    return records_pb2.MemberRecord(
        member=member_to_record(member), group=group, slot=int(slot), run=run, admitted=True
    )


def told(member: MemberId, chain: Chain) -> Told:
    return Told(member.broker, "c", "id", record(member), {P: chain}, {})


async def planned(answers: Answers, *registered: MemberId, without: tuple[str, ...] = ()) -> Plan:
    coordinator = MemoryCoordinator(MemoryStore())
    cluster = records_pb2.ClusterRecord(cluster="c", id="id", format_level=1)
    puts = [Put(KEYS.cluster_record, cluster.SerializeToString())]
    puts += [Put(KEYS.member(member.broker), record(member).SerializeToString()) for member in registered]
    await coordinator.txn((), puts)
    return await make_plan(coordinator, KEYS, answers, NOW_MS, without)


async def test_a_group_of_which_no_member_told_stops_the_rebuild() -> None:
    answers = Answers((told(M00, FIRST), told(M01, FIRST)), {"g1-0": "UNAVAILABLE: connection refused"})
    plan = await planned(answers, M00, M01, M10, M11)
    assert plan.silent == [
        "g1-0 did not answer (UNAVAILABLE: connection refused); see below",
        "g1-1 was not named in --brokers; see below",
    ]
    (refusal,) = plan.refusals
    assert "no member of the broker group g1 answered (g1-0, g1-1)" in refusal
    assert "would be lost" in refusal
    assert "--without-group g1" in refusal


async def test_a_group_that_only_a_chain_names_stops_it_as_well() -> None:
    plan = await planned(Answers((told(M00, SECOND),)), M00, M01)
    assert [line.partition(" ")[0] for line in plan.silent] == ["g0-1", "g1-0", "g1-1"]
    assert len(plan.refusals) == 1
    assert "the broker group g1" in plan.refusals[0]


async def test_a_person_may_say_that_it_goes_on_without_a_group() -> None:
    plan = await planned(Answers((told(M00, FIRST),)), M00, M01, M10, M11, without=("g1",))
    assert plan.refusals == []
    assert any("no member of the broker group g1 answered" in line for line in plan.unknown)
    assert any("rewound or skipped in the lost time" in line for line in plan.unknown)


@pytest.mark.parametrize("group", ["g0", "g9"])
async def test_a_group_that_answered_or_is_not_known_is_a_mistake(group: str) -> None:
    with pytest.raises(BadRequestError, match=f"{group}: not a broker group of which no member answered"):
        await planned(Answers((told(M00, FIRST), told(M10, FIRST))), M00, M01, M10, M11, without=(group,))


async def test_one_silent_member_beside_one_that_told_is_said_and_does_not_stop_it() -> None:
    plan = await planned(Answers((told(M00, FIRST), told(M11, FIRST))), M00, M01, M10, M11)
    assert plan.refusals == []
    assert [line.partition(";")[0] for line in plan.silent] == [
        "g0-1 was not named in --brokers",
        "g1-0 was not named in --brokers",
    ]
    assert all("every segment of it with acknowledged messages is known" in line for line in plan.silent)


async def test_if_all_tell_nothing_is_said_of_silence() -> None:
    plan = await planned(Answers(tuple(told(member, SECOND) for member in (M00, M01, M10, M11))))
    assert plan.silent == []
    assert plan.refusals == []


# ---- what was deleted, and of which no record is left ----------------------------------------------------

G10 = CursorState(1, "g", 10, 100, 100, settings=SETTINGS_DEFAULT)
"""What a disk still has of a consumer group, in its tenth epoch."""


async def rebuilt(*puts: Put, cursor: CursorState = G10) -> MemoryStore:
    """A coordinator with `puts`, after a rebuild from one broker that has the chain and a control record."""
    store = MemoryStore()
    coordinator = MemoryCoordinator(store)
    cluster = records_pb2.ClusterRecord(cluster="c", id="id", format_level=1)
    await coordinator.txn((), [Put(KEYS.cluster_record, cluster.SerializeToString()), *puts])
    one = replace(told(M00, FIRST), cursors={P: [cursor]})
    plan = await make_plan(coordinator, KEYS, Answers((one,)), NOW_MS)
    assert not await carry_out(coordinator, plan)
    return store


async def test_a_group_whose_deleted_cursor_was_removed_does_not_come_back() -> None:
    store = await rebuilt(EpochFloor(floor=10, expired=10, count=1).put(KEYS))
    assert KEYS.cursor(P, "g") not in store.items


async def test_a_group_that_was_made_after_the_copy_comes_back_under_its_epoch() -> None:
    store = await rebuilt(EpochFloor(floor=9, expired=9, count=1).put(KEYS))
    assert cursor_from_value(store.items[KEYS.cursor(P, "g")].value).group_epoch == 10


async def test_after_a_rebuild_groups_begin_above_every_epoch_that_was_used() -> None:
    """The disk that had epoch 11 was not asked."""
    store = await rebuilt()
    first = EpochFloor.of(store.items[KEYS.group_epoch])
    assert first.floor == NOW_MS
    assert first.expired == 0, "a disk that is asked later may report groups that were not deleted"
    again = await rebuilt(first.put(KEYS))
    assert EpochFloor.of(again.items[KEYS.group_epoch]).floor > first.floor
    assert KEYS.cursor(P, "g") in again.items


async def test_a_rebuild_lets_no_group_begin_from_its_first_write_to_its_last() -> None:
    coordinator = MemoryCoordinator(store := MemoryStore())
    plan = await make_plan(coordinator, KEYS, Answers((told(M00, FIRST), told(M01, FIRST))), NOW_MS)
    seen = []
    for step in plan.steps:
        assert not await carry_out(coordinator, Plan(NOW_MS, [step]))
        floor = EpochFloor.of(store.items[KEYS.group_epoch])
        seen.append((floor.is_rebuilding, KEYS.chain(P) in store.items))
    assert seen[0] == (True, False)
    assert seen[-2:] == [(True, True), (False, True)]
    assert floor.floor == NOW_MS, "above every group epoch that was used"


async def test_a_rebuild_that_cannot_begin_writes_nothing() -> None:
    """The floor was raised after the plan was made, so the first write is refused."""
    coordinator = MemoryCoordinator(store := MemoryStore())
    plan = await make_plan(coordinator, KEYS, Answers((told(M00, FIRST),)), NOW_MS)
    await coordinator.txn((), [EpochFloor(floor=3).put(KEYS)])
    assert await carry_out(coordinator, plan) == [step.text for step in plan.steps]
    assert KEYS.chain(P) not in store.items
    assert not await carry_out(coordinator, await make_plan(coordinator, KEYS, Answers((told(M00, FIRST),)), NOW_MS))
    assert KEYS.chain(P) in store.items


async def test_cursors_of_a_partition_are_written_before_its_chain() -> None:
    """Rule `cursors-before-chains`."""
    coordinator = MemoryCoordinator(MemoryStore())
    plan = await make_plan(coordinator, KEYS, Answers((replace(told(M00, FIRST), cursors={P: [G10]}),)), NOW_MS)
    written = [put.key for step in plan.steps for put in step.operations if isinstance(put, Put)]
    assert written.index(KEYS.cursor(P, "g")) < written.index(KEYS.chain(P))


async def test_a_rebuild_that_finds_nothing_lost_leaves_the_floor() -> None:
    store = MemoryStore()
    coordinator = MemoryCoordinator(store)
    cluster = records_pb2.ClusterRecord(cluster="c", id="id", format_level=1)
    await coordinator.txn((), [Put(KEYS.cluster_record, cluster.SerializeToString())])
    answers = Answers((replace(told(M00, FIRST), cursors={P: [G10]}),))
    await carry_out(coordinator, await make_plan(coordinator, KEYS, answers, NOW_MS))
    assert (await make_plan(coordinator, KEYS, answers, NOW_MS)).steps == []


# ---- writers ---------------------------------------------------------------------------------------------

NIGHTLY = name_digest("nightly") + b"rand" + PRODUCER_MARK


def with_writers(member: MemberId, *writers: KnownWriter) -> Told:
    return replace(told(member, FIRST), writers={P: writers})


async def store_after(
    *answers: Told, records: dict[str, WriterRecord] | None = None, behind: str = "older"
) -> MemoryStore:
    """A coordinator that kept the topic with these writers, after a rebuild."""
    store = MemoryStore()
    coordinator = MemoryCoordinator(store)
    topic = records_pb2.TopicRecord(name="orders", incarnation="ab" * 16, partition_ids=[P])
    puts = [Put(KEYS.topic("orders"), topic.SerializeToString())]
    puts += [
        Put(KEYS.writer("ab" * 16, name), writer_to_record(record).SerializeToString())
        for name, record in (records or {}).items()
    ]
    cluster = records_pb2.ClusterRecord(cluster="c", id="id", format_level=1)
    await coordinator.txn((), [Put(KEYS.cluster_record, cluster.SerializeToString()), *puts])
    for _ in range(2):  # the second time there is nothing more to write
        plan = await make_plan(
            coordinator, KEYS, Answers(tuple(replace(one, behind=behind) for one in answers)), NOW_MS
        )
        assert not await carry_out(coordinator, plan)
        writers = [step.text for step in plan.steps if "writer" in step.text]
    assert writers == []
    return store


def writers_in(store: MemoryStore) -> dict[str, WriterRecord]:
    prefix = KEYS.writers_of("ab" * 16)
    return {key.removeprefix(prefix): writer_from_value(store.items[key].value) for key in store.items if prefix in key}


async def test_a_lost_writer_is_kept_for_its_program_to_ask() -> None:
    store = await store_after(
        with_writers(M00, KnownWriter(NIGHTLY, 7, 90, 5000)), with_writers(M01, KnownWriter(NIGHTLY, 7, 60, 4000))
    )
    ((name, record),) = writers_in(store).items()
    assert name == f"~{NIGHTLY[:4].hex()}-{b'rand'.hex()}"
    assert (record.producer, record.sequence, record.rebuilt) == (NIGHTLY, 7, ((P, 90),))
    assert record.is_rebuilt


async def test_an_older_record_learns_the_last_sequence() -> None:
    before = WriterRecord(NIGHTLY, "orders", 3, "me", WriterState.DONE, 5, digest=b"d" * 16, done_at_ms=1000)
    store = await store_after(with_writers(M00, KnownWriter(NIGHTLY, 7, 90, 5000)), records={"nightly": before})
    assert writers_in(store) == {
        "nightly": WriterRecord(NIGHTLY, "orders", 3, "me", WriterState.DONE, 7, done_at_ms=5000, rebuilt=((P, 90),))
    }
    assert writers_in(store)["nightly"].layout == RowLayout(1, 0), "the topic has one partition"


async def test_a_record_that_is_as_new_as_the_disks_stays() -> None:
    now = WriterRecord(NIGHTLY, "orders", 3, "me", WriterState.DECIDED, 7, digest=b"d" * 16)
    store = await store_after(with_writers(M00, KnownWriter(NIGHTLY, 7, 90, 5000)), records={"nightly": now})
    assert writers_in(store) == {"nightly": now}


async def test_a_deleted_writer_of_the_same_name_does_not_count() -> None:
    now = WriterRecord(NIGHTLY, "orders", 3, "", WriterState.DONE, 2, digest=b"d" * 16, done_at_ms=9000)
    earlier = NIGHTLY[:4] + b"gone" + PRODUCER_MARK
    answer = with_writers(M00, KnownWriter(NIGHTLY, 2, 5, 9000), KnownWriter(earlier, 50, 90, 5000))
    assert writers_in(await store_after(answer, records={"nightly": now}))["nightly"] == now


async def test_a_writer_that_got_its_name_in_the_lost_time_is_found() -> None:
    before = WriterRecord(b"12345678" + PRODUCER_MARK, "orders", 3, "", WriterState.DONE, 6, digest=b"d" * 16)
    store = await store_after(with_writers(M00, KnownWriter(NIGHTLY, 7, 90, 5000)), records={"nightly": before})
    record = writers_in(store)["nightly"]
    assert (record.producer, record.sequence, record.is_rebuilt) == (NIGHTLY, 7, True)


async def test_writers_stay_if_nothing_was_lost() -> None:
    first = await store_after(with_writers(M00))  # what else a rebuild writes here
    answers = Answers((with_writers(M00, KnownWriter(NIGHTLY, 7, 90, 5000)),))
    assert (await make_plan(MemoryCoordinator(first), KEYS, answers, NOW_MS)).steps == []


async def test_the_stage_topic_is_rebuilt_as_it_was() -> None:
    plan = await planned(Answers((told(M00, replace(FIRST, topic="_stage")),)))
    (step,) = [put for step in plan.steps for put in step.operations if isinstance(put, Put) and "/topics/" in put.key]
    topic = records_pb2.TopicRecord.FromString(step.value)
    assert topic.incarnation == "0" * 32
    assert topic.settings.retention_ms == 24 * 3600 * 1000
    assert not any("_stage" in line for line in plan.unknown)


async def test_a_rebuilt_topic_has_a_legal_incarnation_and_names_what_it_lacks() -> None:
    plan = await planned(Answers((told(M00, FIRST),)))
    (step,) = [put for step in plan.steps for put in step.operations if isinstance(put, Put) and "/topics/" in put.key]
    assert TopicIncarnation(records_pb2.TopicRecord.FromString(step.value).incarnation)
    assert "topic orders: settings other than flush and width, and attributes; " in "".join(plan.unknown)


async def test_a_deleted_partition_does_not_come_back() -> None:
    store = await rebuilt(put_deleted_partitions(KEYS, NONE_DELETED.with_ids([P])))
    assert KEYS.chain(P) not in store.items
    assert KEYS.cursor(P, "g") not in store.items


async def test_time_of_a_rebuild_is_written_last_also_if_all_was_lost() -> None:
    """Brokers that read it list again what they keep copies of."""
    coordinator = MemoryCoordinator(store := MemoryStore())
    plan = await make_plan(coordinator, KEYS, Answers((told(M00, FIRST), told(M01, FIRST))), NOW_MS)
    last = plan.steps.pop()
    assert not await carry_out(coordinator, plan)
    assert {KEYS.member("g0-0"), KEYS.member("g0-1"), KEYS.chain(P)} <= store.items.keys()
    cluster = records_pb2.ClusterRecord.FromString(store.items[KEYS.cluster_record].value)
    assert (cluster.id, cluster.rebuilt_at_ms) == ("id", 0)
    assert not await carry_out(coordinator, Plan(NOW_MS, [last]))
    cluster = records_pb2.ClusterRecord.FromString(store.items[KEYS.cluster_record].value)
    assert (cluster.id, cluster.rebuilt_at_ms, cluster.rebuild_begun_ms) == ("id", NOW_MS, 0)
    assert await carry_out(coordinator, Plan(NOW_MS, [last])) == [last.text], (
        "another rebuild has written its time since"
    )


@pytest.mark.parametrize("is_empty", [True, False])
async def test_rebuild_that_did_not_end_is_ended_by_the_next_one(*, is_empty: bool) -> None:
    """The first one wrote all but its time, so no other record is left to write."""
    coordinator = MemoryCoordinator(store := MemoryStore())
    if not is_empty:
        cluster = records_pb2.ClusterRecord(cluster="c", id="id", format_level=1)
        await coordinator.txn((), [Put(KEYS.cluster_record, cluster.SerializeToString())])
    answers = Answers((told(M00, FIRST), told(M01, FIRST)))
    first = await make_plan(coordinator, KEYS, answers, NOW_MS)
    del first.steps[-1:]
    assert not await carry_out(coordinator, first)
    assert EpochFloor.of(store.items[KEYS.group_epoch]).is_rebuilding
    second = await make_plan(coordinator, KEYS, answers, NOW_MS)
    assert not await carry_out(coordinator, second)
    floor = EpochFloor.of(store.items[KEYS.group_epoch])
    assert (floor.floor > NOW_MS, floor.is_rebuilding) == (True, False)
    cluster = records_pb2.ClusterRecord.FromString(store.items[KEYS.cluster_record].value)
    assert (cluster.rebuilt_at_ms > 0, cluster.rebuild_begun_ms) == (True, 0)
    assert not (await make_plan(coordinator, KEYS, answers, NOW_MS)).steps


@pytest.mark.parametrize("registered", [(), (M00,)])
async def test_after_a_rebuild_a_broker_counts_as_of_its_version_and_is_linked_over_tcp_as_before(
    registered: tuple[MemberId, ...],
) -> None:
    core = BrokerCore(BrokerConfig(), M00, 5, bytes(12), lambda *_: 0)
    place = Place("c", "g0", 0, "h:7100", link_address="h:7103", stream_port=7104)
    mine = tell(core, Identity("id", M00, "g0", 0, 5, 0, NEVER_SEEN), place, 0).member
    plan = await planned(Answers((replace(told(M00, FIRST), member=mine), told(M01, FIRST))), *registered)
    puts = [put for step in plan.steps for put in step.operations if isinstance(put, Put)]
    [written] = [records_pb2.MemberRecord.FromString(put.value) for put in puts if put.key == KEYS.member("g0-0")]
    assert (written.run, written.admitted, written.address) == (5, True, "h:7100")
    assert written.link_address == "h:7103"
    assert written.stream_port == 7104
    assert (written.forms_run, written.forms) == (5, FORMS)


async def test_a_rebuild_keeps_of_an_older_record_what_the_broker_does_not_tell_and_no_old_ports() -> None:
    older = record(M00, 3)
    older.link_address, older.boot_id = "gone:7103", "machine"
    older.stream_port = 7104
    core = BrokerCore(BrokerConfig(), M00, 5, bytes(12), lambda *_: 0)
    mine = tell(core, Identity("id", M00, "g0", 0, 5, 0, NEVER_SEEN), Place("c", "g0", 0, "h:7100"), 0).member
    store = MemoryStore()
    coordinator = MemoryCoordinator(store)
    cluster = records_pb2.ClusterRecord(cluster="c", id="id", format_level=1)
    puts = [Put(KEYS.cluster_record, cluster.SerializeToString()), Put(KEYS.member("g0-0"), older.SerializeToString())]
    await coordinator.txn((), puts)
    answers = Answers((replace(told(M00, FIRST), member=mine), told(M01, FIRST)))
    assert not await carry_out(coordinator, await make_plan(coordinator, KEYS, answers, NOW_MS))
    written = records_pb2.MemberRecord.FromString(store.items[KEYS.member("g0-0")].value)
    assert (written.run, written.link_address, written.boot_id) == (5, "", "machine")
    assert written.stream_port == 0


async def test_external_groups_are_named_with_what_is_not_known_of_them() -> None:
    """Their programs report to the coordinator alone, so no broker knows how far they are."""
    store = MemoryStore()
    cluster = records_pb2.ClusterRecord(cluster="c", id="id", format_level=1)
    reported = CursorRecord(1, 0, 7, "orders", external=True)
    puts = [
        Put(KEYS.cluster_record, cluster.SerializeToString()),
        Put(KEYS.cursor(P, "archive"), cursor_to_value(reported)),
        Put(KEYS.cursor(P, "gone"), cursor_to_value(replace(reported, deleted=True))),
        Put(KEYS.cursor(P, "readers"), cursor_to_value(replace(reported, external=False))),
    ]
    await MemoryCoordinator(store).txn((), puts)
    plan = await make_plan(MemoryCoordinator(store), KEYS, Answers((told(M00, FIRST),)), NOW_MS)
    (line,) = [line for line in plan.unknown if line.startswith("external consumer groups")]
    assert "older copy of the coordinator (orders archive) until they report again" in line
    (line,) = [line for line in (await planned(Answers((told(M00, FIRST),)))).unknown if "external" in line]
    assert "They have no place until they report again" in line


async def test_a_rebuilt_topic_is_as_old_as_its_first_segment() -> None:
    """Dead letters from before the rebuild are of this topic."""
    segment = replace(FIRST.segments[0], opened_at_ms=1234)
    plan = await planned(Answers((told(M00, replace(FIRST, segments=(segment,))),)))
    (step,) = [put for step in plan.steps for put in step.operations if isinstance(put, Put) and "/topics/" in put.key]
    assert records_pb2.TopicRecord.FromString(step.value).created_at_ms == 1234
