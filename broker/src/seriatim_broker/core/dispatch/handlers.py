"""Which function takes which event, which message of another broker, and which timer.

The tables name every part of the core, and each part imports only the parts below it. So the tables have a module of
their own. `BrokerCore` itself handles the messages that are not about one partition, and chain records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seriatim_api import errors
from seriatim_api.ids import MemberId, PartitionId

from ..consumers import (
    cursors,
    eligibility,
    forwarding,
    granting,
    handover,
    keeping,
    operations,
    progress,
    pumping,
    questions,
    ranges,
    serving,
    sessions,
    streams,
    waiting_keys,
    yielding,
)
from ..consumers.consumer_group import forget_if_unused
from ..control import leaving, orders, retention, standing
from ..copies import copying, gaps, producer_tables, repair, settle
from ..peers import right
from ..state.broker import BrokerState
from ..state.partition import Partition, Partitions
from ..switching import fencing, idle_blocks, planned, preparing, routes, sealing, switch
from ..values.effects import AppendRefused, LogsListed
from ..values.events import (
    Append,
    AskCopies,
    CarryOut,
    CertificateRead,
    CertificateSeen,
    ChainRead,
    ChainWritten,
    CompareChains,
    ConsumerAck,
    ConsumerAcks,
    ConsumerCredit,
    ConsumerDemand,
    ConsumerExtend,
    ConsumerGone,
    ConsumerJoin,
    ConsumerLeave,
    ConsumerNack,
    ConsumerPing,
    ConsumerSpreadOver,
    ConsumerYielded,
    CoordinatorRebuilt,
    CreatePartition,
    CursorRead,
    CursorWritten,
    DeadLetterRead,
    DeclareGap,
    DescribeConsumerGroup,
    DirectoryChanged,
    DiskRoom,
    DropDeleted,
    DropPartitionData,
    ForgetConsumerGroup,
    ForwardsDone,
    FoundDamage,
    Heal,
    KeysRead,
    LinkDown,
    LinkUp,
    ListCursors,
    ListKeys,
    ListLed,
    ListLogs,
    LogRead,
    MoveOpenSegment,
    OperateConsumerGroup,
    OperateKeys,
    OwnRecordSeen,
    PassConsumerGroup,
    PlanSwitch,
    ReadRange,
    Release,
    ResolveConsumer,
    ResolveProducer,
    RowsRead,
    StagedFetched,
    SurveyPartition,
    SwitchAwayFrom,
    Tick,
    Trim,
    WriterRead,
    WritesRefused,
)
from ..values.kinds import ReadKind, SwitchReason, TimerKind
from ..values.messages import (
    BlockAnswer,
    BlockOffer,
    BlockRequest,
    CopyAnswer,
    CopyRequest,
    CursorsReplicated,
    EligibleRequest,
    FenceAnswer,
    FenceProgress,
    FenceRequest,
    HandOver,
    HandOverKept,
    HealRequest,
    KeepProducer,
    LedgerWanted,
    MoveRequest,
    PassRequest,
    PrepareAnswer,
    PrepareRequest,
    QuiesceAnswer,
    QuiesceRequest,
    ReleaseRequest,
    Replicate,
    ReplicateAck,
    ReplicateCursors,
    ReplicateLedger,
    ReplicateRefused,
    ReplicateStaged,
    ServerHeard,
    StoreTail,
    SuspectTail,
    TableAnswer,
    TableRequest,
    TailAnswer,
    TailRequest,
    TailStored,
    TakeOver,
)
from ..writing import appending, carrying, following, quiescence, replication
from . import coordinator, learning, links, partitions, record


def _table_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: TableAnswer) -> None:
    producer_tables.on_answer(broker, partition, message)


def _pass_request(broker: BrokerState, partition: Partition, sender: MemberId, message: PassRequest) -> None:
    serving.pass_consumer_group(
        broker, partition, PassConsumerGroup(message.partition, message.segment_no, message.consumer_group)
    )


def _copy_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: CopyAnswer) -> None:
    copying.on_copy_answer(broker, partition, sender, message)
    repair.on_copy_answer(broker, partition, sender, message)
    granting.on_copy_answer(broker, partition, sender, message)


def _block_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: BlockAnswer) -> None:
    idle_blocks.on_answer(broker, partition, sender, message, preparing.on_prepare)


def _cursors_replicated(
    broker: BrokerState, partition: Partition, sender: MemberId, message: CursorsReplicated
) -> None:
    progress.on_replicated(broker, partition, sender, message.segment_no, message.server_epoch, message.serial)
    eligibility.on_cursors_replicated(broker, partition, sender, message)


def _take_over(broker: BrokerState, partition: Partition, sender: MemberId, message: TakeOver) -> None:
    if partition.chain is None:
        partition.read_chain(broker)
    right.on_take_over(broker, partition, sender, message)


Handler = Callable[[BrokerState, Partitions, Any], None]


def _at(handle: Callable[[BrokerState, Partition, Any], None]) -> Handler:
    """A handler for the partition that the event names. A partition that is not known yet is added."""

    def on_event(broker: BrokerState, known: Partitions, event: Any) -> None:
        partition = partitions.find(known, event.partition)
        handle(broker, partition, event)
        partitions.forget_if_idle(broker, known, partition)

    return on_event


def at_known(handle: Callable[[BrokerState, Partition, Any], None]) -> Handler:
    """A handler for the partition that the event names. If this broker does not know it, nothing happens."""

    def on_event(broker: BrokerState, known: Partitions, event: Any) -> None:
        partition = known.get(event.partition)
        if partition is not None:
            handle(broker, partition, event)
            partitions.forget_if_idle(broker, known, partition)

    return on_event


def _append(broker: BrokerState, known: Partitions, event: Append) -> None:
    partition = known.get(event.partition)
    if partition is not None:
        appending.on_append(broker, partition, event)
    else:
        error = errors.NotServingError(
            "this broker is not the master of the open segment: this batch is not stored here"
        )
        broker.out.emit(AppendRefused(event.request, error, None))


def _switch_away(broker: BrokerState, partition: Partition, event: SwitchAwayFrom) -> None:
    switch.begin_failover(broker, partition, SwitchReason.GROUP_LOST, event.segment_no)


def _found_damage(broker: BrokerState, partition: Partition, event: FoundDamage) -> None:
    repair.begin(broker, partition, event.segment_no)


def _staged_fetched(broker: BrokerState, partition: Partition, event: StagedFetched) -> None:
    carrying.on_fetched(broker, partition, event)
    following.on_fetched(broker, partition, event)


def _disk_room(broker: BrokerState, known: Partitions, event: DiskRoom) -> None:
    broker.disk.full_since_us = broker.now.mono_us if event.is_full else None
    broker.out.note("disk_room", PartitionId(0), broker=broker.member.broker, is_full=event.is_full)


def _leave(broker: BrokerState, known: Partitions, event: ConsumerLeave) -> None:
    partition = streams.on_leave(broker, known, event)
    if partition is not None:
        partitions.forget_if_idle(broker, known, partition)


def _gone(broker: BrokerState, known: Partitions, event: ConsumerGone) -> None:
    for partition in streams.on_gone(broker, known, event):
        partitions.forget_if_idle(broker, known, partition)


def _log_read(broker: BrokerState, known: Partitions, event: LogRead) -> None:
    """Give batches from the disk to the part that asked: for a range, a repair, a copy or a delivery."""
    kind, partition_id, no, who, from_index = broker.reads.pop(event.serial)
    partition = known.get(partition_id)
    if partition is None:
        return
    if event.is_damaged:
        repair.begin(broker, partition, no)
    if kind is ReadKind.RANGE:  # `from_index` is the request
        ranges.on_log_read(broker, partition, event.serial, from_index, event.batches)
    elif kind is ReadKind.REPAIR:
        repair.on_log_read(broker, partition, no, event.batches)
    elif kind is ReadKind.GROUP:
        assert isinstance(who, str)
        pumping.on_log_read(broker, partition, event.serial, who, event.batches)
    else:
        assert isinstance(who, MemberId)
        copying.on_log_read(broker, partition, no, who, from_index, event.batches, kind)


def _keys_read(broker: BrokerState, known: Partitions, event: KeysRead) -> None:
    """Give the keys of messages to the consumer group that asked for them."""
    _, partition_id, no, who, _ = broker.reads.pop(event.serial)
    partition = known.get(partition_id)
    if partition is None:
        return
    if event.is_damaged:
        repair.begin(broker, partition, no)
    assert isinstance(who, str)
    granting.on_keys_read(broker, partition, who, event)


def _rows_read(broker: BrokerState, known: Partitions, event: RowsRead) -> None:
    """Give messages to the consumer group that granted them."""
    _, partition_id, no, who, _ = broker.reads.pop(event.serial)
    partition = known.get(partition_id)
    if partition is None:
        return
    if event.is_damaged:
        repair.begin(broker, partition, no)
    assert isinstance(who, str)
    granting.on_rows_read(broker, partition, who, event)


def _dead_letter_read(broker: BrokerState, known: Partitions, event: DeadLetterRead) -> None:
    """Give a message to the consumer group that sends it to its dead-letter topic."""
    _, partition_id, no, who, _ = broker.reads.pop(event.serial)
    partition = known.get(partition_id)
    if partition is None:
        return
    if event.is_damaged:
        repair.begin(broker, partition, no)
    assert isinstance(who, str)
    forwarding.on_read(broker, partition, who, event)


def _forwards_done(broker: BrokerState, partition: Partition, event: ForwardsDone) -> None:
    forwarding.on_done(broker, partition, event)
    consumer_group = partition.consumer_groups.get(event.consumer_group)
    if consumer_group is not None:
        progress.go_on(broker, partition, consumer_group)
        forget_if_unused(partition, consumer_group)


def _list_logs(broker: BrokerState, known: Partitions, event: ListLogs) -> None:
    after = (event.after_partition, event.after_segment)
    logs = sorted(
        (partition.id, no, log.readable_below)
        for partition in known.values()
        for no, log in partition.logs.items()
        if (partition.id, no) > after and log.readable_below
    )
    broker.out.emit(LogsListed(event.request, tuple(logs[: event.limit])))


EVENTS: dict[type, Handler] = {
    Tick: lambda broker, known, event: None,  # the due timers run after every event
    LinkUp: links.on_up,
    LinkDown: links.on_down,
    LogRead: _log_read,
    KeysRead: _keys_read,
    RowsRead: _rows_read,
    DeadLetterRead: _dead_letter_read,
    ForwardsDone: at_known(_forwards_done),
    DiskRoom: _disk_room,
    # the coordinator
    ChainRead: _at(record.on_chain_read),
    ChainWritten: at_known(record.on_chain_written),
    CursorRead: at_known(serving.on_cursor_read),
    CursorWritten: at_known(serving.on_cursor_written),
    CertificateRead: coordinator.on_certificate_read,
    CertificateSeen: coordinator.on_certificate_seen,
    DirectoryChanged: coordinator.on_directory,
    WritesRefused: coordinator.on_writes_refused,
    CompareChains: coordinator.on_compare_chains,
    CoordinatorRebuilt: coordinator.on_rebuilt,
    OwnRecordSeen: coordinator.on_own_record,
    # clients
    Append: _append,
    ResolveProducer: _at(routes.on_resolve),
    ResolveConsumer: _at(questions.on_resolve),
    DescribeConsumerGroup: _at(questions.on_describe),
    OperateConsumerGroup: _at(operations.ask),
    ListKeys: _at(waiting_keys.ask),
    OperateKeys: _at(waiting_keys.ask),
    SurveyPartition: _at(ranges.survey),
    ReadRange: _at(ranges.read),
    ConsumerJoin: _at(streams.on_join),
    ConsumerLeave: _leave,
    ConsumerAck: streams.on_ack,
    ConsumerAcks: streams.on_acks,
    ConsumerNack: streams.on_nack,
    ConsumerDemand: streams.on_demand,
    ConsumerExtend: streams.on_extend,
    ConsumerSpreadOver: streams.on_spread_over,
    ConsumerYielded: streams.on_yielded,
    ConsumerCredit: streams.on_credit,
    ConsumerPing: streams.on_ping,
    ConsumerGone: _gone,
    # publications
    CarryOut: _at(carrying.carry_out),
    StagedFetched: at_known(_staged_fetched),
    WriterRead: at_known(carrying.on_writer_read),
    # the controller and the operator
    CreatePartition: _at(switch.begin_genesis),
    DropPartitionData: partitions.on_drop,
    DropDeleted: partitions.on_drop_deleted,
    PlanSwitch: _at(switch.begin_planned),
    SwitchAwayFrom: _at(_switch_away),
    DeclareGap: _at(gaps.declare),
    Heal: _at(orders.on_heal),
    MoveOpenSegment: _at(orders.on_move),
    Release: _at(orders.on_release),
    PassConsumerGroup: at_known(serving.pass_consumer_group),
    ForgetConsumerGroup: at_known(cursors.forget_consumer_group),
    FoundDamage: at_known(_found_damage),
    Trim: at_known(retention.trim),
    AskCopies: lambda broker, known, event: standing.ask(broker, event),
    ListLogs: _list_logs,
    ListLed: lambda broker, known, event: broker.out.emit(retention.list_led(broker, known, event)),
    ListCursors: lambda broker, known, event: broker.out.emit(cursors.list_groups(known, event)),
}
"""The handler of each kind of event. Its arguments are (broker, partitions, event)."""


MESSAGES: dict[type, Callable[[BrokerState, Partition, MemberId, Any], None]] = {
    FenceRequest: fencing.on_fence,
    FenceAnswer: sealing.on_fence_answer,
    FenceProgress: sealing.on_fence_progress,
    PrepareRequest: preparing.on_prepare,
    PrepareAnswer: switch.on_prepare_answer,
    BlockOffer: idle_blocks.on_offer,
    BlockRequest: idle_blocks.on_request,
    BlockAnswer: _block_answer,
    QuiesceRequest: quiescence.on_quiesce,
    QuiesceAnswer: planned.on_quiesced,
    Replicate: following.on_replicate,
    ReplicateStaged: following.on_replicate_staged,
    ReplicateAck: replication.on_replicate_ack,
    ReplicateRefused: replication.on_replicate_refused,
    TailRequest: following.on_resume,
    TailAnswer: replication.on_tail_answer,
    CopyRequest: copying.on_copy_request,
    CopyAnswer: _copy_answer,
    StoreTail: settle.on_store_tail,
    TailStored: settle.on_tail_stored,
    SuspectTail: settle.on_suspect_tail,
    TableRequest: producer_tables.on_request,
    TableAnswer: _table_answer,
    ReplicateCursors: cursors.on_replicate_cursors,
    CursorsReplicated: _cursors_replicated,
    ReplicateLedger: cursors.on_replicate_ledger,
    LedgerWanted: cursors.on_ledger_wanted,
    HandOver: handover.on_hand_over,
    HandOverKept: handover.on_kept,
    EligibleRequest: eligibility.on_eligible_request,
    TakeOver: _take_over,
    ServerHeard: questions.on_server_heard,
    HealRequest: orders.on_heal_request,
    MoveRequest: orders.on_move_request,
    ReleaseRequest: orders.on_release_request,
    PassRequest: _pass_request,
    KeepProducer: carrying.on_keep_producer,
}
"""The handler of each kind of message. Its arguments are (broker, partition, sender, message)."""


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
    TimerKind.ROOM: lambda broker, partition, _: leaving.leave_full_disk(broker, partition),
    TimerKind.WAITERS: lambda broker, partition, _: routes.answer_waiters(broker, partition),
    TimerKind.FENCE_TURN: lambda broker, partition, _: fencing.on_turn_over(broker, partition),
    TimerKind.WINDOWS: lambda broker, partition, _: learning.make_windows(broker, partition),
    TimerKind.AMEND: lambda broker, partition, _: record.amend(broker, partition),
    TimerKind.BLOCKS: lambda broker, partition, _: idle_blocks.on_timer(broker, partition),
    TimerKind.CARRYING: lambda broker, partition, _: carrying.look_again(broker, partition),
    TimerKind.RANGES: lambda broker, partition, _: ranges.look_again(broker, partition),
    TimerKind.SETTLE: settle.on_timer,
    TimerKind.COPY: copying.on_timer,
    TimerKind.REPAIR: repair.on_timer,
    TimerKind.PUMP: progress.retry,
    TimerKind.REPLICATION: cursors.on_replication_due,
    TimerKind.CURSOR: serving.on_cursor_timer,
    TimerKind.SESSION: sessions.on_due,
    TimerKind.SPREAD: yielding.on_due,
    TimerKind.KEYS: serving.on_keys_due,
    TimerKind.KEEPING: keeping.look,
    TimerKind.OPERATIONS: operations.on_due,
    TimerKind.WAITING_KEYS: waiting_keys.on_due,
    TimerKind.QUESTIONS: lambda broker, partition, _: questions.on_due(broker, partition),
}
"""The handler of each kind of timer. Its arguments are (broker, partition, the timer's detail)."""
