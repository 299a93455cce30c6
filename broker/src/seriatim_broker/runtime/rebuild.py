"""Rebuilds the coordinator's records from what the brokers told: it reads what is there, plans, and writes.

`core.control.rebuild` decides about chains and cursors. Each record is written by compare-and-swap on the revision that
was read, so newer writes are not overwritten. A rebuild may be repeated until it finds nothing to do.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from seriatim_api.errors import BadRequestError, PreconditionError
from seriatim_api.ids import MemberId, PartitionId, TopicIncarnation
from seriatim_api.publications import STAGE_TOPIC
from seriatim_api.v1 import records_pb2

from ..core.control import rebuild
from ..core.values.chain import Chain
from ..core.values.keyed import ConsumerMode
from ..core.values.log import CursorState
from ..core.values.writers import NAME_BYTES, WriterRecord
from ..interfaces.coordinator import (
    Compare,
    Coordinator,
    Delete,
    KeyValue,
    Operation,
    Put,
    mod_revision_is,
    value_is,
)
from .coordinator.chain_layout import ChainArchive
from .coordinator.group_epochs import EpochFloor
from .coordinator.keys import Keys, group_of, partition_of
from .coordinator.pages import read_all_whole
from .coordinator.records import (
    cursor_from_value,
    cursor_to_value,
    deleted_partitions_from,
    member_to_record,
    writer_from_value,
    writer_to_record,
)
from .coordinator.stage import STAGE_INCARNATION, stage_settings
from .membership.registration import FORMAT_LEVEL

DEADLINE_S = 10.0
"""Deadline of each call to the coordinator."""

WRITERS_PER_STEP = 50
"""Records of writers that are written in one transaction. The coordinator takes 128 operations."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one broker reported."""

    name: str
    cluster: str
    cluster_id: str
    member: records_pb2.MemberRecord
    chains: Mapping[PartitionId, Chain]
    cursors: Mapping[PartitionId, Sequence[CursorState]]
    behind: str = ""
    writers: Mapping[PartitionId, Sequence[rebuild.KnownWriter]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of the brokers that were asked.

    Attributes:
        told: Of the brokers that answered; at least one.
        silent: By broker name, why the others did not answer.
    """

    told: tuple[Told, ...]
    silent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One record that is to be written, and the text about it for humans."""

    text: str
    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]


@dataclass(slots=True)
class Plan:
    """What a rebuild would do.

    Attributes:
        now_ms: The time of the wall clock at which it was made.
        steps: In the order in which they are written.
        conflicts: What it does not write, because brokers contradict each other. An administrator must decide.
        silent: Which known brokers did not report anything, why, and what that may cost.
        unknown: What was perhaps lost, and cannot be known.
        refusals: Why the plan must not be written.
    """

    now_ms: int
    steps: list[Step] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


async def make_plan(
    coordinator: Coordinator, keys: Keys, answers: Answers, now_ms: int, without_groups: Collection[str] = ()
) -> Plan:
    """Compare what the coordinator has with what the brokers reported.

    Args:
        coordinator: The one that lost decisions.
        keys: Of the cluster.
        answers: Of its brokers.
        now_ms: The time, by the wall clock.
        without_groups: Broker groups of which no member has to answer.

    Raises:
        PreconditionError: The brokers are of different clusters.
        BadRequestError: A member of a broker group in `without_groups` did answer, or there is no such broker group.
        SeriatimError: The coordinator did not answer.
    """
    told = answers.told
    assert told
    if len({(one.cluster, one.cluster_id) for one in told}) > 1:
        raise PreconditionError("the brokers are of different clusters; name the brokers of one cluster only")
    if told[0].cluster != keys.cluster:
        raise PreconditionError(f"the brokers are of cluster {told[0].cluster!r}, not {keys.cluster!r}")
    listing = await coordinator.list(keys.prefix, deadline_s=DEADLINE_S)
    items = {item.key: item for item in listing.items}
    plan = Plan(now_ms)
    cluster, is_unfinished = _read_cluster(keys, items, told[0].cluster_id)
    for one in told:
        _plan_member(plan, keys, items, one)
    _plan_silent_members(plan, keys, items, told)
    chains = await _read_chains(coordinator, keys, items)
    topics = _plan_chains(plan, keys, items, chains, told)
    incarnations = _plan_topics(plan, keys, items, topics)
    if plan.steps or is_unfinished or any(one.behind for one in told):  # decisions were lost
        _plan_writers(plan, keys, items, topics, incarnations, told)
        _plan_frame(plan, keys, items, cluster, told)
    _tell_silence(plan, _known_brokers(keys, items, chains, told), answers, without_groups)
    _tell_unknown(plan, _external_groups(keys, items))
    return plan


async def carry_out(coordinator: Coordinator, plan: Plan) -> list[str]:
    """Write the plan record by record. Returns the texts of steps whose record had changed: not written.

    If the first step is not written, nothing is: it says that a rebuild has begun (`none-begins-in-a-rebuild`).
    """
    changed: list[str] = []
    for number, step in enumerate(plan.steps):
        result = await coordinator.txn(step.compares, step.operations, deadline_s=DEADLINE_S)
        if not result.succeeded and not number:
            return [step.text for step in plan.steps]
        if not result.succeeded:
            changed.append(step.text)
    return changed


def _put(plan: Plan, items: Mapping[str, KeyValue], key: str, value: bytes, text: str) -> None:
    known = items.get(key)
    if known is None or known.value != value:
        plan.steps.append(Step(text, (mod_revision_is(key, _revision(items, key)),), (Put(key, value),)))


def _read_cluster(keys: Keys, items: Mapping[str, KeyValue], cluster_id: str) -> tuple[records_pb2.ClusterRecord, bool]:
    """The cluster's record, and whether it must be written: there is none, or a rebuild began and did not end.

    A rebuild that did not end has written records, and perhaps all of them but the last. So there is nothing else from
    which to see that the last one is to be written.
    """
    item = items.get(keys.cluster_record)
    if item is not None:
        found = records_pb2.ClusterRecord.FromString(item.value)
        if found.id == cluster_id:
            return found, bool(found.rebuild_begun_ms)
        if any(name.startswith(keys.chains) for name in items):
            raise PreconditionError(f"the coordinator has a cluster {keys.cluster!r} with another id, and data of it")
    return records_pb2.ClusterRecord(cluster=keys.cluster, id=cluster_id, format_level=FORMAT_LEVEL), True


def _plan_frame(
    plan: Plan, keys: Keys, items: Mapping[str, KeyValue], record: records_pb2.ClusterRecord, told: Sequence[Told]
) -> None:
    """Plan the first write and the last one: they say that a rebuild has begun, and when it has ended.

    A restored coordinator counts revisions from those of its copy. So brokers that keep the highest revision would say
    for ever that it went back. The time tells them that it is repaired, that its revisions count from a lower number,
    and that they must list again what they keep copies of. So it comes last, also if the cluster's record was lost and
    is written again. Without that, a broker would list before the records of the members are there.

    Between the two writes no consumer group without a cursor begins (`none-begins-in-a-rebuild` in `group_epochs`).
    """
    floor = _raised_floor(plan, keys, items, told)
    record.rebuild_begun_ms = max(plan.now_ms, record.rebuild_begun_ms + 1)
    begun = Put(keys.cluster_record, record.SerializeToString()), replace(floor, is_rebuilding=True).put(keys)
    compares = tuple(mod_revision_is(put.key, _revision(items, put.key)) for put in begun)
    first = Step(f"that a rebuild has begun; new consumer groups begin above epoch {floor.floor}", compares, begun)
    record.rebuild_begun_ms = 0
    record.rebuilt_at_ms = max(plan.now_ms, record.rebuilt_at_ms + 1)
    ended = Put(keys.cluster_record, record.SerializeToString()), floor.put(keys)
    unchanged = tuple(value_is(put.key, put.value) for put in begun)
    last = Step("the time of this rebuild: brokers accept its revision", unchanged, ended)
    plan.steps = [first, *plan.steps, last]


def _revision(items: Mapping[str, KeyValue], key: str) -> int:
    return items[key].mod_revision if key in items else 0


def _raised_floor(plan: Plan, keys: Keys, items: Mapping[str, KeyValue], told: Sequence[Told]) -> EpochFloor:
    """The floor above which consumer groups without a cursor begin: above every epoch that may have been used.

    Rule `floor-of-a-rebuild` (I1). Without it:
      1. The coordinator goes back, and the floor of group epochs with it.
      2. A disk that was not asked has acknowledgements of consumer group g in a higher group epoch.
      3. g is made again and reaches that epoch. Its server counts the old acknowledgements, and g never gets messages.

    A group epoch grows by one with a write of a cursor. So no epoch is as high as the time in milliseconds, and a later
    rebuild sets a higher floor than this one. `expired` stays, because the control records on a disk that is asked
    later may be all that is left of a consumer group.
    """
    floor = EpochFloor.of(items.get(keys.group_epoch))
    cursors = [cursor for one in told for cursors in one.cursors.values() for cursor in cursors]
    highest = max((cursor.group_epoch for cursor in cursors), default=0)
    base = max((cursor.term_base for cursor in cursors), default=0)
    term_base = max(floor.term_base, base + 1) if base else floor.term_base
    return replace(floor, floor=max(floor.floor + 1, highest, plan.now_ms), term_base=term_base, is_rebuilding=False)


def _plan_member(plan: Plan, keys: Keys, items: Mapping[str, KeyValue], told: Told) -> None:
    key = keys.member(told.name)
    mine = records_pb2.MemberRecord()
    mine.CopyFrom(told.member)
    if key in items:
        found = records_pb2.MemberRecord.FromString(items[key].value)
        if found.member.incarnation != mine.member.incarnation:
            plan.conflicts.append(f"{told.name} runs with disk {mine.member.incarnation}, its record names another one")
            return
        if found.run >= mine.run:
            return
        mine.CopyFrom(found)  # what the broker does not report stays, also fields of a newer version
        # What is empty is reported too, and merging takes only what is not empty.
        mine.link_address, mine.stream_port = "", 0
        mine.MergeFrom(told.member)
        mine.admitted, mine.clean_shutdown = True, False
    _put(plan, items, key, mine.SerializeToString(), f"the record of {told.name}, run {mine.run}")


def _plan_silent_members(plan: Plan, keys: Keys, items: Mapping[str, KeyValue], told: Sequence[Told]) -> None:
    """Plan records for members that were not asked and have none, because a start refuses a disk without a record."""
    names = {one.name for one in told}
    newest: dict[str, tuple[int, MemberId, str]] = {}
    runs: dict[MemberId, int] = {}
    for chain in (chain for one in told for chain in one.chains.values()):
        for segment in chain.segments:
            runs[segment.master] = max(runs.get(segment.master, 1), segment.master_run)
            for member in segment.members:
                slot = newest.get(member.broker)
                if member.broker not in names and (slot is None or slot[0] <= segment.opened_at_ms):
                    newest[member.broker] = (segment.opened_at_ms, member, segment.broker_group)
    for broker, (_, member, group) in sorted(newest.items()):
        slot_no = broker.removeprefix(f"{group}-")
        if keys.member(broker) in items or not slot_no.isdecimal():
            continue
        record = records_pb2.MemberRecord(
            member=member_to_record(member), group=group, slot=int(slot_no), run=runs.get(member, 1), admitted=True
        )
        text = f"the record of {broker}, which was not asked: the disk {member.incarnation}"
        _put(plan, items, keys.member(broker), record.SerializeToString(), text)


@dataclass(slots=True)
class _Chains:
    """What the coordinator has of chains."""

    archive: ChainArchive
    by_partition: dict[PartitionId, Chain] = field(default_factory=dict)


async def _read_chains(coordinator: Coordinator, keys: Keys, items: Mapping[str, KeyValue]) -> _Chains:
    chains = _Chains(ChainArchive())
    found = [item for name, item in items.items() if name.startswith(keys.chains)]
    for whole in await read_all_whole(coordinator, keys, found, deadline_s=DEADLINE_S):
        chain = chains.archive.parse(whole.item.value, whole.item.mod_revision, whole.pages)
        chains.by_partition[chain.partition] = chain
    return chains


def _plan_chains(
    plan: Plan, keys: Keys, items: Mapping[str, KeyValue], chains: _Chains, told: Sequence[Told]
) -> dict[str, dict[int, Chain]]:
    """Plan chains and cursors. Returns the chains of each topic, by partition number.

    Rule `cursors-before-chains` (K2, J1): the cursors of a partition are written before its chain. A cursor in a
    segment that the record does not have waits for the record. Without it:
      1. Consumer group g has left segment 1, and the coordinator forgets that.
      2. The rebuild writes the chain. A broker that waited for it has all that it knew, and serves g in segment 1.
      3. It grants k:5 once more, which was confirmed in segment 1, before the cursor of g is written.
    """
    current = chains.by_partition
    tombstones = (partition_of(name) for name in items if name.startswith(keys.tombstones))
    ranges = items.get(keys.deleted_partitions)
    deleted = deleted_partitions_from(ranges.value if ranges is not None else None).with_ids(tombstones)
    expired = EpochFloor.of(items.get(keys.group_epoch)).expired
    topics: dict[str, dict[int, Chain]] = {}
    for partition in sorted({*current, *(number for one in told for number in one.chains)}):
        if partition in deleted:
            continue
        known = {one.name: one.chains[partition] for one in told if partition in one.chains}
        if not known and partition not in current:
            continue
        planned = rebuild.plan_chain(partition, known, current.get(partition))
        chain = planned.chain or planned.current or next(iter(known.values()))
        name = chain.name
        if planned.conflict:
            plan.conflicts.append(f"{name}: {planned.conflict}")
        topics.setdefault(chain.topic, {})[chain.number] = chain
        cursors = [cursor for one in told for cursor in one.cursors.get(partition, ())]
        for group in sorted({cursor.consumer_group for cursor in cursors}):
            key = keys.cursor(partition, group)
            value = items[key].value if key in items else None
            before = cursor_from_value(value) if value is not None else None
            states = [cursor for cursor in cursors if cursor.consumer_group == group]
            record = rebuild.plan_cursor(states, before, chain.topic, expired, chain.epoch)
            if record is not None:
                if record.mode is ConsumerMode.BROADCAST:
                    record = replace(record, reported_at_ms=plan.now_ms)  # kept for as long as if it had been here
                text = f"the cursor of {group} in {name}: segment {record.segment_no}, epoch {record.group_epoch}"
                _put(plan, items, key, cursor_to_value(record, value), text)
        if planned.chain is not None:
            _plan_chain(plan, keys, items, chains.archive, planned)
    return topics


def _plan_chain(
    plan: Plan, keys: Keys, items: Mapping[str, KeyValue], archive: ChainArchive, planned: rebuild.ChainPlan
) -> None:
    chain = planned.chain
    assert chain is not None
    key = keys.chain(chain.partition)
    layout = archive.lay_out(chain)
    operations: list[Operation] = [Put(key, layout.record)]
    for number, value in layout.pages:
        page = keys.page(chain.partition, number)
        operations.append(Delete(page) if value is None else Put(page, value))
    was = f"epoch {planned.current.epoch}" if planned.current is not None else "nothing"
    text = (
        f"the chain of {chain.name}: epoch {chain.epoch}, segment "
        f"{chain.open_segment.no} open on {chain.open_segment.broker_group}, as {planned.told_by} knows it; was {was}"
    )
    plan.steps.append(Step(text, (mod_revision_is(key, _revision(items, key)),), tuple(operations)))


def _plan_topics(
    plan: Plan, keys: Keys, items: Mapping[str, KeyValue], topics: Mapping[str, Mapping[int, Chain]]
) -> dict[str, str]:
    """Plan the records of topics that have none. Returns the incarnation of each topic that has one then."""
    incarnations: dict[str, str] = {}
    highest = 0
    for name, chains in sorted(topics.items()):
        highest = max(highest, *(chain.partition for chain in chains.values()))
        key = keys.topic(name)
        if key in items:
            incarnations[name] = records_pb2.TopicRecord.FromString(items[key].value).incarnation
            continue
        missing = [number for number in range(max(chains) + 1) if number not in chains]
        if missing:
            plan.conflicts.append(f"topic {name}: no broker knows its partitions {missing}; its record is not written")
            continue
        first = chains[0]
        is_stage = name == STAGE_TOPIC
        settings = records_pb2.TopicSettings(flush=first.flush, chain_width=first.width)
        if is_stage:
            settings = stage_settings()
        record = records_pb2.TopicRecord(
            name=name,
            incarnation=STAGE_INCARNATION if is_stage else TopicIncarnation.of_bytes(uuid.uuid4().bytes),
            state=records_pb2.TOPIC_STATE_READY,
            partition_ids=[chains[number].partition for number in range(len(chains))],
            settings=settings,
            # Not now: dead letters from before would seem to be of a deleted topic.
            created_at_ms=min(chain.segments[0].opened_at_ms for chain in chains.values()) or plan.now_ms,
        )
        if not is_stage:
            text = "settings other than flush and width, and attributes; whether it had more partitions"
            plan.unknown.append(f"topic {name}: {text}")
        incarnations[name] = record.incarnation
        _put(plan, items, key, record.SerializeToString(), f"topic {name} with {len(chains)} partitions")
    counter = items.get(keys.partition_counter)
    following = records_pb2.CounterRecord.FromString(counter.value).next if counter is not None else 1
    if following <= highest:
        value = records_pb2.CounterRecord(next=highest + 1).SerializeToString()
        _put(plan, items, keys.partition_counter, value, f"the next partition id, {highest + 1}")
    return incarnations


def _plan_writers(
    plan: Plan,
    keys: Keys,
    items: Mapping[str, KeyValue],
    topics: Mapping[str, Mapping[int, Chain]],
    incarnations: Mapping[str, str],
    told: Sequence[Told],
) -> None:
    """Plan the records of writers from what producer tables know.

    Rule `rebuilt-writers` (P2): a writer's program is told what was published. Without it:
      1. A program publishes 1 to 100. The coordinator loses its data, and is rebuilt from the brokers.
      2. The program opens its writer, and is told that nothing was published.
      3. It publishes 1 to 100 again, and all rows are there twice.

    A table knows the producer id of a writer and not its name. The id begins with a digest of the name. So a record is
    written under the id, and the publisher finds it when a program names the writer.
    """
    for topic, incarnation in sorted(incarnations.items()):
        if topic == STAGE_TOPIC:
            continue
        partitions = [chain.partition for chain in topics[topic].values()]
        found = {
            partition: [writer for one in told for writer in one.writers.get(partition, ())] for partition in partitions
        }
        known = rebuild.rebuilt_writers(found, topic)
        prefix = keys.writers_of(incarnation)
        for key in [key for key in items if key.startswith(prefix)]:
            name = key.removeprefix(prefix)
            current = writer_from_value(items[key].value)
            newer = rebuild.plan_writer(name, current, known) if not name.startswith("~") else None
            if newer is not None:
                value = writer_to_record(newer, items[key].value).SerializeToString()
                text = f"the record of writer {name} of topic {topic}: sequence {newer.sequence}"
                _put(plan, items, key, value, text)
                known.pop(newer.producer, None)
            if not name.startswith("~"):
                known.pop(current.producer, None)
        nameless = list(known.values())
        for start in range(0, len(nameless), WRITERS_PER_STEP):
            page = nameless[start : start + WRITERS_PER_STEP]
            _plan_nameless(plan, keys, items, incarnation, topic, page)


def _plan_nameless(
    plan: Plan,
    keys: Keys,
    items: Mapping[str, KeyValue],
    incarnation: str,
    topic: str,
    page: Sequence[WriterRecord],
) -> None:
    compares: list[Compare] = []
    operations: list[Operation] = []
    for record in page:
        key = keys.lost_writer(incarnation, record.producer, NAME_BYTES)
        value = writer_to_record(record).SerializeToString()
        item = items.get(key)
        if item is None or item.value != value:
            compares.append(mod_revision_is(key, item.mod_revision if item is not None else 0))
            operations.append(Put(key, value))
    if operations:
        text = f"the last publications of {len(operations)} writers of topic {topic}, for their programs to ask for"
        plan.steps.append(Step(text, tuple(compares), tuple(operations)))


def _known_brokers(
    keys: Keys, items: Mapping[str, KeyValue], chains: _Chains, told: Sequence[Told]
) -> dict[str, set[str]]:
    """All brokers that are registered, or that a chain names as a holder, by broker group."""
    names = {name.removeprefix(keys.members) for name in items if name.startswith(keys.members)}
    names |= {one.name for one in told}
    for chain in (*chains.by_partition.values(), *(chain for one in told for chain in one.chains.values())):
        for segment in chain.segments:
            names |= {member.broker for member in (*segment.members, *segment.tail_copies)}
    groups: dict[str, set[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition("-")[0], set()).add(name)
    return groups


def _tell_silence(
    plan: Plan, groups: Mapping[str, set[str]], answers: Answers, without_groups: Collection[str]
) -> None:
    """Say which brokers did not answer, and refuse to write if no member of a broker group answered.

    Each member of a segment has its chain record on its disk before a message of it. So if one member of each broker
    group answers, every segment with acknowledged messages is known. Without an answer from broker group B:

        1. Segment 2 is open on B, and messages are acknowledged there, when the coordinator goes back to segment 1.
        2. No other broker has learned of segment 2, and B does not answer. The rebuild finds nothing to write.
        3. The partition continues from segment 1 with another segment 2 (I7). Readers never get the messages on B (I1).
    """
    speakers = {one.name for one in answers.told}
    without_answer = {group: names for group, names in sorted(groups.items()) if not names & speakers}
    mistaken = sorted(set(without_groups) - set(without_answer))
    if mistaken:
        raise BadRequestError(f"{', '.join(mistaken)}: not a broker group of which no member answered")
    for group, names in sorted(groups.items()):
        for name in sorted(names - speakers):
            why = answers.silent.get(name)
            said = f"{name} did not answer ({why})" if why is not None else f"{name} was not named in --brokers"
            others = ", ".join(sorted(names & speakers))
            rest = (
                f"{others} of its broker group answered, so every segment of it with acknowledged messages is known; "
                f"what only {name} knows may be lost: how it sealed or settled segments before the end, and cursors"
                if others
                else "see below"
            )
            plan.silent.append(f"{said}; {rest}")
        if group in without_answer:
            cost = (
                f"no member of the broker group {group} answered ({', '.join(sorted(names))}): segments that were "
                "opened on it in the lost time are not known, and all messages acknowledged in them would be lost"
            )
            if group in without_groups:
                plan.unknown.append(cost)
            else:
                plan.refusals.append(
                    f"{cost}. Remedy: start a member and name it in --brokers; or, if all its disks "
                    f"are lost for good, add --without-group {group}"
                )


def _external_groups(keys: Keys, items: Mapping[str, KeyValue]) -> list[str]:
    """The external consumer groups that the coordinator still knows, as `topic group`."""
    found = set()
    for key, item in items.items():
        if key.startswith(keys.cursors):
            record = cursor_from_value(item.value)
            if record.external and not record.deleted:
                found.add(f"{record.topic} {group_of(key)}")
    return sorted(found)


def _tell_unknown(plan: Plan, external: Sequence[str]) -> None:
    if plan.steps:
        plan.unknown.append("topics, consumer groups and partitions that were deleted in the lost time: they are back")
        plan.unknown.append("consumer groups that no consumer has joined: such a group starts as a new one")
        # Only the coordinator knows what they reported: no broker serves them.
        known = f", or that of an older copy of the coordinator ({', '.join(external)})" if external else ""
        plan.unknown.append(
            "external consumer groups, such as Spark queries and other programs that report their progress: what they "
            f"reported. They have no place{known} until they report again. Run each of them once, or retention may "
            "drop what they have not read, also from topics that keep unread messages"
        )
        plan.unknown.append("consumer groups that were paused in the lost time: they are not paused")
        plan.unknown.append(
            "consumer groups that were rewound or skipped in the lost time, and that no consumer joined since: they "
            "are where they were before"
        )
        plan.unknown.append(
            "writers: whether all partitions have the last publication of each. So a program that opens its writer is "
            "given the sequence below the last one, and publishes the last one again, which repeats no row"
        )
        plan.unknown.append(
            "writers that the partitions have forgotten, because many others published since: their programs "
            "are told that nothing was published, and would publish everything again. Do not run them before you know "
            "their last sequences"
        )
        plan.unknown.append("intents and weights of broker groups (cordoned, drained) that were set in the lost time")
