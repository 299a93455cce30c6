"""Which function takes which event, which message of another broker, and which timer.

The tables name every part of the core, and each part imports only the parts below it. So the tables have a module of
their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seriatim_api import errors
from seriatim_api.ids import MemberId, PartitionId

from ..consumers.cursors import control_records
from ..consumers.cursors.consumer_group import forget_if_unused, keyed_of
from ..consumers.exclusive import assignment, delivery, reassignment
from ..consumers.groups import (
    beginning,
    cursor_notes,
    eligibility,
    operations,
    progress,
    questions,
    serving,
    sessions,
    streams,
    without_consumers,
)
from ..consumers.keyed import dead_letters, grants, handoff, outcomes, waiting_keys
from ..consumers.ranges import range_reads, surveys
from ..control import drain, holdings, orders, retention
from ..copies import copying, gaps, producer_tables, repair, settle
from ..delayed import cancelling, firing, ledger, listing, retaining, volley_fence
from ..peers import lanes, right
from ..state.broker import BrokerState
from ..state.consumers import KeyedServed
from ..state.partition import Partition, Partitions
from ..switching import fencing, idle_blocks, planned, preparing, routes, sealing, switch
from ..values import delayed_messages as dm
from ..values import events as ev
from ..values import messages as m
from ..values.delayed import is_ledger_name
from ..values.effects import AppendRefused, LogsListed
from ..values.kinds import ReadKind, SwitchReason, TimerKind
from ..values.owners import OwnerRead
from ..writing import appending, exclusive_producers, following, publication_rows, quiescence, replication
from . import coordinator, links, partitions, record


def _table_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: m.TableAnswer) -> None:
    producer_tables.on_answer(broker, partition, message)


def _pass_request(broker: BrokerState, partition: Partition, sender: MemberId, message: m.PassRequest) -> None:
    without_consumers.pass_consumer_group(
        broker, partition, ev.PassConsumerGroup(message.partition, message.segment_no, message.consumer_group)
    )


def _copy_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: m.CopyAnswer) -> None:
    copying.on_copy_answer(broker, partition, sender, message)
    repair.on_copy_answer(broker, partition, sender, message)
    grants.on_copy_answer(broker, partition, sender, message)


def _block_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: m.BlockAnswer) -> None:
    idle_blocks.on_answer(broker, partition, sender, message, preparing.on_prepare)


def _take_over(broker: BrokerState, partition: Partition, sender: MemberId, message: m.TakeOver) -> None:
    if partition.chain is None:
        partition.read_chain(broker)
    right.on_take_over(broker, partition, sender, message)


Handler = Callable[[BrokerState, Partitions, Any], None]
MessageHandler = Callable[[BrokerState, Partitions, MemberId, Any], None]


def _at(handle: Callable[..., None]) -> Callable[..., None]:
    """A handler for the partition that an event or a message names. A partition that is not known yet is added."""

    def on_event(broker: BrokerState, known: Partitions, *what: Any) -> None:
        partition = partitions.find(known, what[-1].partition)
        handle(broker, partition, *what)
        partitions.forget_if_idle(broker, known, partition)

    return on_event


def at_known(handle: Callable[..., None]) -> Callable[..., None]:
    """A handler for the partition that an event or a message names. If it is not known here, nothing happens."""

    def on_event(broker: BrokerState, known: Partitions, *what: Any) -> None:
        partition = known.get(what[-1].partition)
        if partition is not None:
            handle(broker, partition, *what)
            partitions.forget_if_idle(broker, known, partition)

    return on_event


_on_chain_read = _at(record.on_chain_read)


def _append(broker: BrokerState, known: Partitions, event: ev.Append) -> None:
    partition = known.get(event.partition)
    if partition is not None:
        appending.on_append(broker, partition, event)
    else:
        error = errors.NotServingError(
            "this broker is not the master of the open segment: this batch is not stored here"
        )
        broker.out.emit(AppendRefused(event.request, error, None))


def _chain_read(broker: BrokerState, known: Partitions, event: ev.ChainRead) -> None:
    # Rule `tombstone-read` (GONE): a read that finds the tombstone proves as much as the tombstone itself. Without it:
    # 1. A topic is deleted. This member has dropped its data. 2. A switcher that has not heard of it prepares a segment
    # here. 3. This member keeps the preparation, and reads the chain again and again, until its next start.
    if event.deleted:
        partitions.on_drop(broker, known, event)
    else:
        _on_chain_read(broker, known, event)


def _switch_away(broker: BrokerState, partition: Partition, event: ev.SwitchAwayFrom) -> None:
    switch.begin_failover(broker, partition, SwitchReason.GROUP_LOST, event.segment_no)


def _found_damage(broker: BrokerState, partition: Partition, event: ev.FoundDamage) -> None:
    repair.begin(broker, partition, event.segment_no)


def _staged_fetched(broker: BrokerState, partition: Partition, event: ev.StagedFetched) -> None:
    publication_rows.on_fetched(broker, partition, event)
    following.on_fetched(broker, partition, event)


def _disk_room(broker: BrokerState, known: Partitions, event: ev.DiskRoom) -> None:
    broker.disk.full_since_us = broker.now.mono_us if event.is_full else None
    broker.out.note("disk_room", PartitionId(0), broker=broker.member.broker, is_full=event.is_full)


def _leave(broker: BrokerState, known: Partitions, event: ev.ConsumerLeave) -> None:
    partition = streams.on_leave(broker, known, event)
    if partition is not None:
        partitions.forget_if_idle(broker, known, partition)


def _gone(broker: BrokerState, known: Partitions, event: ev.ConsumerGone) -> None:
    for partition in streams.on_gone(broker, known, event):
        partitions.forget_if_idle(broker, known, partition)


def _log_read(broker: BrokerState, known: Partitions, event: ev.LogRead) -> None:
    """Give batches from the disk to the part that asked: for a range, a repair, a copy or a delivery."""
    kind, partition_id, no, who, from_index = broker.reads.pop(event.serial)
    partition = known.get(partition_id)
    if partition is None:
        return
    if event.is_damaged:
        repair.begin(broker, partition, no)
    if kind is ReadKind.RANGE:  # `from_index` is the request
        range_reads.on_log_read(broker, partition, event.serial, from_index, event.batches)
    elif kind is ReadKind.REPAIR:
        repair.on_log_read(broker, partition, no, event.batches)
    elif kind is ReadKind.GROUP:
        assert isinstance(who, str)
        progress.on_log_read(broker, partition, event.serial, who, event.batches)
    else:
        assert isinstance(who, MemberId)
        copying.on_log_read(broker, partition, no, who, from_index, event.batches, kind)


def _reader(handle: Callable[[KeyedServed, Any], None]) -> Handler:
    """A handler that gives what was read to the consumer group that asked for it, if it is still served key by key."""

    def on_event(broker: BrokerState, known: Partitions, event: Any) -> None:
        _, partition_id, no, who, _ = broker.reads.pop(event.serial)
        partition = known.get(partition_id)
        if partition is None:
            return
        if event.is_damaged:
            repair.begin(broker, partition, no)
        assert isinstance(who, str)
        served = keyed_of(partition, who)
        if served is not None:
            handle(served, event)

    return on_event


def _forwards_done(broker: BrokerState, partition: Partition, event: ev.ForwardsDone) -> None:
    dead_letters.on_done(partition, event)
    consumer_group = partition.consumer_groups.get(event.consumer_group)
    if consumer_group is not None and consumer_group.served is not None:
        progress.go_on(consumer_group.served)
    if consumer_group is not None:
        forget_if_unused(partition, consumer_group)


def _volley_read(broker: BrokerState, partition: Partition, event: dm.VolleyRead) -> None:
    if event.is_damaged:
        repair.begin(broker, partition, event.segment_no)
    firing.on_volley_read(broker, partition, event)


def _ledger_wanted(broker: BrokerState, partition: Partition, sender: MemberId, message: m.LedgerWanted) -> None:
    on_wanted = ledger.on_wanted if is_ledger_name(message.consumer_group) else control_records.on_ledger_wanted
    on_wanted(broker, partition, sender, message)


def _pump(broker: BrokerState, partition: Partition, no: int) -> None:
    progress.retry(broker, partition, no)
    firing.on_pump_due(broker, partition, no)


def _list_logs(broker: BrokerState, known: Partitions, event: ev.ListLogs) -> None:
    after = (event.after_partition, event.after_segment)
    logs = sorted(
        (partition.id, no, log.readable_below)
        for partition in known.values()
        for no, log in partition.logs.items()
        if (partition.id, no) > after and log.readable_below
    )
    broker.out.emit(LogsListed(event.request, tuple(logs[: event.limit])))


def _received(broker: BrokerState, known: Partitions, event: ev.Received) -> None:
    link = broker.links.by_broker.get(event.broker)
    # Rule `any-session` (SERVER): messages of an older connection do not count. Without it:
    #   1. As refuses server Am for segment 1 in its newest answer to a heartbeat.
    #   2. An answer of the connection before waited in a queue, and is handled now: it names no refusal.
    #   3. Am delivers, although As is about to take the right over.
    if link is None or not link.up or link.session != event.session:
        return
    lanes.on_received(link, event.message, broker.now.mono_us)
    assert link.member is not None
    MESSAGES[type(event.message)](broker, known, link.member, event.message)


def _chain_reported(
    broker: BrokerState, known: Partitions, sender: MemberId, message: m.ChainUpdate | m.ChainChanges
) -> None:
    if message.chain.partition not in known and broker.member not in message.chain.open_segment.members:
        return
    partition = partitions.find(known, message.chain.partition)
    if isinstance(message, m.ChainUpdate):
        record.on_update(broker, partition, sender, message)
    else:
        record.on_changes(broker, partition, sender, message)


def _copies_question(broker: BrokerState, known: Partitions, sender: MemberId, message: m.CopiesQuestion) -> None:
    broker.send(sender, m.CopiesAnswer(message.serial, holdings.reports(broker, known, message)))


EVENTS: dict[type, Handler] = {
    ev.Tick: lambda broker, known, event: None,  # the due timers run after every event
    ev.Received: _received,
    ev.LinkUp: links.on_up,
    ev.LinkDown: links.on_down,
    ev.LogRead: _log_read,
    ev.KeysRead: _reader(grants.on_keys_read),
    ev.RowsRead: _reader(grants.on_rows_read),
    ev.DeadLetterRead: _reader(dead_letters.on_read),
    ev.ForwardsDone: at_known(_forwards_done),
    dm.DueRead: at_known(firing.on_due_read),
    dm.PendingRead: at_known(retaining.on_read),
    dm.VolleyRead: at_known(_volley_read),
    dm.DelayedFound: at_known(cancelling.on_found),
    dm.VolleysStored: at_known(firing.on_stored),
    dm.FiredRead: at_known(volley_fence.on_read),
    ev.DiskRoom: _disk_room,
    # the coordinator
    ev.ChainRead: _chain_read,
    ev.ChainWritten: at_known(record.on_chain_written),
    ev.CursorRead: at_known(serving.on_cursor_read),
    ev.CursorWritten: at_known(serving.on_cursor_written),
    ev.CertificateRead: coordinator.on_certificate_read,
    ev.CertificateSeen: coordinator.on_certificate_seen,
    ev.DirectoryChanged: coordinator.on_directory,
    ev.WritesRefused: coordinator.on_writes_refused,
    ev.CompareChains: coordinator.on_compare_chains,
    ev.CoordinatorRebuilt: coordinator.on_rebuilt,
    ev.OwnRecordSeen: coordinator.on_own_record,
    # clients
    ev.Append: _append,
    dm.CancelDelayed: _at(cancelling.cancel),
    dm.ListFiring: _at(listing.list_firing),
    dm.ListComplete: _at(listing.list_complete),
    dm.FilterDelayed: _at(listing.filter_delayed),
    dm.DelayedPending: _at(listing.on_pending),
    dm.AskPending: _at(retaining.ask),
    ev.ResolveProducer: _at(routes.on_resolve),
    ev.ResolveConsumer: _at(questions.on_resolve),
    ev.DescribeConsumerGroup: _at(questions.on_describe),
    ev.OperateConsumerGroup: _at(operations.ask),
    ev.ListKeys: _at(waiting_keys.ask),
    ev.OperateKeys: _at(waiting_keys.ask),
    ev.SurveyPartition: _at(surveys.survey),
    ev.ReadRange: _at(range_reads.read),
    ev.ConsumerJoin: _at(streams.on_join),
    ev.ConsumerLeave: _leave,
    ev.ConsumerAck: streams.subscribed(delivery.on_ack),
    ev.ConsumerAcks: streams.subscribed(outcomes.on_acks),
    ev.ConsumerNack: streams.subscribed(outcomes.on_nack),
    ev.ConsumerDemand: streams.subscribed(outcomes.on_demand),
    ev.ConsumerExtend: streams.subscribed(outcomes.on_extend),
    ev.ConsumerSpreadOver: streams.subscribed(assignment.on_spread_over),
    ev.ConsumerYielded: streams.subscribed(reassignment.on_yielded),
    ev.ConsumerCredit: streams.on_credit,
    ev.ConsumerPing: streams.on_ping,
    ev.ConsumerGone: _gone,
    # publications
    ev.CarryOut: _at(publication_rows.carry_out),
    ev.StagedFetched: at_known(_staged_fetched),
    ev.WriterRead: at_known(publication_rows.on_writer_read),
    OwnerRead: at_known(exclusive_producers.on_read),
    # the controller and the operator
    ev.CreatePartition: _at(switch.begin_genesis),
    ev.DropPartitionData: partitions.on_drop,
    ev.DropDeleted: partitions.on_drop_deleted,
    ev.PlanSwitch: _at(switch.begin_planned),
    ev.SwitchAwayFrom: _at(_switch_away),
    ev.DeclareGap: _at(gaps.declare),
    ev.Heal: _at(orders.on_heal),
    ev.MoveOpenSegment: _at(orders.on_move),
    ev.Release: _at(orders.on_release),
    ev.PassConsumerGroup: at_known(without_consumers.pass_consumer_group),
    ev.ForgetConsumerGroup: at_known(control_records.forget_consumer_group),
    ev.FoundDamage: at_known(_found_damage),
    ev.Trim: at_known(retention.trim),
    ev.AskCopies: lambda broker, known, event: holdings.ask(broker, event),
    ev.ListLogs: _list_logs,
    ev.ListLed: lambda broker, known, event: broker.out.emit(retention.list_led(broker, known, event)),
    ev.ListCursors: lambda broker, known, event: broker.out.emit(control_records.list_groups(known, event)),
}
"""The handler of each kind of event. Its arguments are (broker, partitions, event)."""


MESSAGES: dict[type, MessageHandler] = {
    m.Heartbeat: lambda broker, known, sender, message: links.on_heartbeat(broker, sender, message),
    m.HeartbeatAnswer: links.on_heartbeat_answer,
    m.ChainUpdate: _chain_reported,
    m.ChainChanges: _chain_reported,
    m.CopiesQuestion: _copies_question,
    m.CopiesAnswer: lambda broker, known, sender, message: holdings.on_answer(broker, sender, message),
    m.LaneProbe: lambda broker, known, sender, message: None,  # `lanes.on_received` has counted it
    m.FenceRequest: _at(fencing.on_fence),
    m.FenceAnswer: _at(sealing.on_fence_answer),
    m.FenceProgress: _at(sealing.on_fence_progress),
    m.PrepareRequest: _at(preparing.on_prepare),
    m.PrepareAnswer: _at(switch.on_prepare_answer),
    m.BlockOffer: _at(idle_blocks.on_offer),
    m.BlockRequest: _at(idle_blocks.on_request),
    m.BlockAnswer: _at(_block_answer),
    m.QuiesceRequest: _at(quiescence.on_quiesce),
    m.QuiesceAnswer: _at(planned.on_quiesced),
    m.Replicate: _at(following.on_replicate),
    m.ReplicateStaged: _at(following.on_replicate_staged),
    m.ReplicateAck: _at(replication.on_replicate_ack),
    m.ReplicateRefused: _at(replication.on_replicate_refused),
    m.TailRequest: _at(following.on_resume),
    m.TailAnswer: _at(replication.on_tail_answer),
    m.CopyRequest: _at(copying.on_copy_request),
    m.CopyAnswer: _at(_copy_answer),
    m.StoreTail: _at(settle.on_store_tail),
    m.TailStored: _at(settle.on_tail_stored),
    m.SuspectTail: _at(settle.on_suspect_tail),
    m.TableRequest: _at(producer_tables.on_request),
    m.TableAnswer: _at(_table_answer),
    m.ReplicateCursors: _at(control_records.on_replicate_cursors),
    m.CursorsReplicated: at_known(eligibility.on_cursors_replicated),
    m.ReplicateLedger: _at(control_records.on_replicate_ledger),
    m.LedgerWanted: _at(_ledger_wanted),
    m.HandOver: _at(handoff.on_handoff),
    m.HandOverKept: _at(handoff.on_kept),
    m.EligibleRequest: _at(eligibility.on_eligible_request),
    m.TakeOver: _at(_take_over),
    m.ServerHeard: _at(questions.on_server_heard),
    m.HealRequest: _at(orders.on_heal_request),
    m.MoveRequest: _at(orders.on_move_request),
    m.ReleaseRequest: _at(orders.on_release_request),
    m.PassRequest: _at(_pass_request),
}
"""The handler of each kind of message of another broker, or of this one to itself. Its arguments are (broker,
partitions, sender, message)."""


BROKER_TIMERS: dict[TimerKind, Callable[[BrokerState, Partitions, Any], None]] = {
    TimerKind.HEARTBEAT: lambda broker, known, _: links.beat(broker, known),
    TimerKind.RESUME: links.on_resume_over,
}
"""The handler of each kind of timer that is not for one partition. Its arguments are (broker, partitions, the timer's
detail)."""


TIMERS: dict[TimerKind, Callable[[BrokerState, Partition, Any], None]] = {
    TimerKind.SWITCH: lambda broker, partition, _: switch.on_timer(broker, partition),
    TimerKind.FOLLOW: lambda broker, partition, _: replication.resume_followers(broker, partition),
    TimerKind.STEP: lambda broker, partition, _: replication.on_step_due(broker, partition),
    TimerKind.COMMIT: lambda broker, partition, _: replication.tell_commit(broker, partition),
    TimerKind.PREPARED: lambda broker, partition, _: preparing.on_prepared_long_ago(broker, partition),
    TimerKind.FENCED: lambda broker, partition, _: fencing.on_fenced_too_long(broker, partition),
    TimerKind.QUIESCE: lambda broker, partition, _: quiescence.on_deadline(broker, partition),
    TimerKind.READ: lambda broker, partition, _: partition.read_chain(broker),
    TimerKind.PROBE: routes.on_probe_due,
    TimerKind.ROOM: lambda broker, partition, _: drain.leave_full_disk(broker, partition),
    TimerKind.WAITERS: lambda broker, partition, _: routes.answer_waiters(broker, partition),
    TimerKind.FENCE_TURN: lambda broker, partition, _: fencing.on_turn_over(broker, partition),
    TimerKind.AMEND: lambda broker, partition, _: record.amend(broker, partition),
    TimerKind.BLOCKS: lambda broker, partition, _: idle_blocks.on_timer(broker, partition),
    TimerKind.CARRYING: lambda broker, partition, _: publication_rows.look_again(broker, partition),
    TimerKind.RANGES: lambda broker, partition, _: range_reads.look_again(broker, partition),
    TimerKind.SETTLE: settle.on_timer,
    TimerKind.COPY: copying.on_timer,
    TimerKind.REPAIR: repair.on_timer,
    TimerKind.PUMP: _pump,
    TimerKind.DELAYED: firing.look,
    TimerKind.REPLICATION: control_records.on_replication_due,
    TimerKind.CURSOR: serving.on_cursor_timer,
    TimerKind.SESSION: sessions.on_due,
    TimerKind.SPREAD: reassignment.on_due,
    TimerKind.KEYS: beginning.on_keys_due,
    TimerKind.KEEPING: cursor_notes.look,
    TimerKind.OPERATIONS: operations.on_due,
    TimerKind.WAITING_KEYS: waiting_keys.on_due,
    TimerKind.QUESTIONS: lambda broker, partition, _: questions.on_due(broker, partition),
}
"""The handler of each kind of timer. Its arguments are (broker, partition, the timer's detail)."""
