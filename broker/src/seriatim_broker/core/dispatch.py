"""Which function takes which message of a peer, and which timer.

The tables stand apart from `broker` because they name every part of the core, and from the parts because these know
only the parts below them. Values are called as they stand here: there is no step between a message and its handler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seriatim_api.ids import MemberId

from . import (
    blocks,
    copying,
    eligibility,
    fencing,
    following,
    learning,
    leaving,
    preparing,
    quiescence,
    ranges,
    repair,
    replication,
    right,
    routes,
    settle,
    tables,
)
from .events import PassGroup
from .groups import cursors, operations, progress, questions, serving, sessions
from .messages import (
    BlockAnswer,
    BlockOffer,
    BlockRequest,
    CopyAnswer,
    CopyRequest,
    CursorSync,
    CursorSynced,
    EligibleRequest,
    FenceAnswer,
    FenceProgress,
    FenceRequest,
    HealRequest,
    KeepProducer,
    MoveRequest,
    PassRequest,
    PrepareAnswer,
    PrepareRequest,
    QuiesceAnswer,
    QuiesceRequest,
    ReleaseRequest,
    ReplicaTail,
    Replicate,
    ReplicateAck,
    ReplicateRefused,
    ReplicateStaged,
    ResumeReplica,
    StoreTail,
    SuspectTail,
    TableAnswer,
    TableRequest,
    TailStored,
    TakeOver,
)
from .outbox import Outbox
from .partition import Partition
from .publications import carrying


def _fence_answer(outbox: Outbox, partition: Partition, sender: MemberId, message: FenceAnswer) -> None:
    if partition.switch is not None:
        partition.switch.on_fence_answer(outbox, partition, sender, message)


def _fence_progress(outbox: Outbox, partition: Partition, sender: MemberId, message: FenceProgress) -> None:
    if partition.switch is not None:
        partition.switch.on_fence_progress(outbox, partition, sender, message)


def _prepare_answer(outbox: Outbox, partition: Partition, sender: MemberId, message: PrepareAnswer) -> None:
    if partition.switch is not None:
        partition.switch.on_prepare_answer(outbox, partition, sender, message)


def _quiesce_answer(outbox: Outbox, partition: Partition, sender: MemberId, message: QuiesceAnswer) -> None:
    if partition.switch is not None:
        partition.switch.on_quiesced(outbox, partition, message)


def _table_answer(outbox: Outbox, partition: Partition, sender: MemberId, message: TableAnswer) -> None:
    tables.on_answer(outbox, partition, message)


def _heal_request(outbox: Outbox, partition: Partition, sender: MemberId, message: HealRequest) -> None:
    if partition.chain is None:
        partition.read_chain(outbox)  # the controller asks again
    copying.heal(outbox, partition, message.segment_no, message.replaces)


def _move_request(outbox: Outbox, partition: Partition, sender: MemberId, message: MoveRequest) -> None:
    leaving.move_head(outbox, partition, message.segment_no)


def _pass_request(outbox: Outbox, partition: Partition, sender: MemberId, message: PassRequest) -> None:
    serving.pass_group(outbox, partition, PassGroup(message.partition, message.segment_no, message.group))


def _release_request(outbox: Outbox, partition: Partition, sender: MemberId, message: ReleaseRequest) -> None:
    leaving.release(outbox, partition, message.segment_nos, message.leaving)


def _copy_answer(outbox: Outbox, partition: Partition, sender: MemberId, message: CopyAnswer) -> None:
    copying.on_copy_answer(outbox, partition, sender, message)
    repair.on_copy_answer(outbox, partition, sender, message)


def _block_answer(outbox: Outbox, partition: Partition, sender: MemberId, message: BlockAnswer) -> None:
    blocks.on_answer(outbox, partition, sender, message, preparing.on_prepare)


def _cursor_synced(outbox: Outbox, partition: Partition, sender: MemberId, message: CursorSynced) -> None:
    progress.on_synced(outbox, partition, sender, message.segment_no, message.server_epoch, message.serial)
    eligibility.on_cursor_synced(outbox, partition, sender, message)


def _take_over(outbox: Outbox, partition: Partition, sender: MemberId, message: TakeOver) -> None:
    if partition.chain is None:
        partition.read_chain(outbox)
    right.take_over(outbox, partition, message.segment_no, message.server_epoch)


MESSAGES: dict[type, Callable[[Outbox, Partition, MemberId, Any], None]] = {
    FenceRequest: fencing.on_fence,
    FenceAnswer: _fence_answer,
    FenceProgress: _fence_progress,
    PrepareRequest: preparing.on_prepare,
    PrepareAnswer: _prepare_answer,
    BlockOffer: blocks.on_offer,
    BlockRequest: blocks.on_request,
    BlockAnswer: _block_answer,
    QuiesceRequest: quiescence.on_quiesce,
    QuiesceAnswer: _quiesce_answer,
    Replicate: following.on_replicate,
    ReplicateStaged: following.on_replicate_staged,
    ReplicateAck: replication.on_replicate_ack,
    ReplicateRefused: replication.on_replicate_refused,
    ResumeReplica: following.on_resume,
    ReplicaTail: replication.on_replica_tail,
    CopyRequest: copying.on_copy_request,
    CopyAnswer: _copy_answer,
    StoreTail: settle.on_store_tail,
    TailStored: settle.on_tail_stored,
    SuspectTail: settle.on_suspect_tail,
    TableRequest: tables.on_request,
    TableAnswer: _table_answer,
    CursorSync: cursors.on_cursor_sync,
    CursorSynced: _cursor_synced,
    EligibleRequest: eligibility.on_eligible_request,
    TakeOver: _take_over,
    HealRequest: _heal_request,
    MoveRequest: _move_request,
    ReleaseRequest: _release_request,
    PassRequest: _pass_request,
    KeepProducer: carrying.on_keep_producer,
}
"""By the kind of message: (outbox, partition, sender, message)."""


def _switch_due(outbox: Outbox, partition: Partition, detail: Any) -> None:
    if partition.switch is not None:
        partition.switch.on_timer(outbox, partition)


TIMERS: dict[str, Callable[[Outbox, Partition, Any], None]] = {
    "switch": _switch_due,
    "follow": lambda outbox, partition, _: replication.resume_followers(outbox, partition),
    "step": lambda outbox, partition, _: replication.on_step_due(outbox, partition),
    "commit": lambda outbox, partition, _: replication.tell_commit(outbox, partition),
    "prepared": lambda outbox, partition, _: preparing.on_prepared_long_ago(outbox, partition),
    "fenced": lambda outbox, partition, _: fencing.on_fenced_too_long(outbox, partition),
    "quiesce": lambda outbox, partition, _: quiescence.on_deadline(outbox, partition),
    "read": lambda outbox, partition, _: partition.read_chain(outbox),
    "probe": routes.on_probe_due,
    "room": lambda outbox, partition, _: leaving.leave_full_disk(outbox, partition),
    "waiters": lambda outbox, partition, _: routes.answer_waiters(outbox, partition),
    "fence turn": lambda outbox, partition, _: fencing.on_turn_over(outbox, partition),
    "windows": lambda outbox, partition, _: learning.make_windows(outbox, partition),
    "blocks": lambda outbox, partition, _: blocks.on_timer(outbox, partition),
    carrying.TIMER: lambda outbox, partition, _: carrying.look_again(outbox, partition),
    "ranges": lambda outbox, partition, _: ranges.look_again(outbox, partition),
    "settle": settle.on_timer,
    "copy": copying.on_timer,
    "repair": repair.on_timer,
    "pump": progress.retry,
    "sync": cursors.on_sync_due,
    "cursor": serving.on_cursor_timer,
    "session": sessions.on_due,
    "operations": operations.on_due,
    "questions": lambda outbox, partition, _: questions.on_due(outbox, partition),
}
"""By the kind of timer: (outbox, partition, the timer's detail)."""
