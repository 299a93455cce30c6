"""A consumer group continues: all members have a control record, time has passed, or the chain record has changed.

Then the server may deliver what it held back, read more, or cross.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ...peers import disks, right
from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroup, ConsumerGroupPhase
from ...state.partition import Partition
from ...values.effects import AckConfirmed, AcksConfirmed
from ...values.kinds import TimerKind
from ...values.log import Batch, SafeCursor
from ...values.states import put
from ..cursors.consumer_group import forget_if_unused, tell
from ..exclusive import delivery, reassignment
from ..keyed import grants, handoff, outcomes, waiting_keys


def retry(broker: BrokerState, partition: Partition, segment_no: int) -> None:
    """Time has passed, or a certificate or a record has come: try to deliver, to read and to cross in this segment."""
    for consumer_group in list(partition.consumer_groups.values()):
        if consumer_group.segment_no == segment_no and consumer_group.phase is ConsumerGroupPhase.SERVING:
            _chase_replications(broker, partition, consumer_group)
            go_on(broker, partition, consumer_group)


def go_on(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> None:
    """Deliver what was held back, read more, and cross, as far as each is possible now."""
    waiting_keys.go_on(broker, partition, consumer_group)
    pump_consumer_group(broker, partition, consumer_group)
    handoff.cross(broker, partition, consumer_group)


def on_keys_due(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> None:
    """A delay or a deadline of a key may be over, or a hand-over has no answer."""
    outcomes.end_late(broker, partition, consumer_group)
    handoff.cross(broker, partition, consumer_group)


def _chase_replications(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> None:
    """Start to remove the members that control records wait for, if they are silent or their disks hang.

    If the disk of this member hangs, ask the other eligible members to take the serving right.
    """
    if not consumer_group.ledger.replications:
        return
    no = consumer_group.segment_no
    waited_for = consumer_group.ledger.waited_for
    if waited_for.intersection(right.unfit_members(broker, partition, no)):
        right.seek(broker, partition, no)
    if broker.member in waited_for and disks.is_hung(broker, broker.member):
        right.offer(broker, partition, no)
    for member in [member for member in right.joining(partition, no) if disks.is_hung(broker, member)]:
        right.stop_joining(partition, no, member)
        expect_no_more(broker, partition, no, member)
    broker.poll(broker.config.heartbeat_us, TimerKind.PUMP, partition.id, consumer_group.segment_no)


# ---- control records become common ----------------------------------------------------------------------


def on_replicated(
    broker: BrokerState, partition: Partition, member: MemberId, no: int, server_epoch: int | None, serial: int
) -> None:
    """A member has a control record. It replaces all older ones of the consumer group, so these are confirmed too."""
    for consumer_group in list(partition.consumer_groups.values()):
        if (
            serial not in consumer_group.ledger.replications
            or consumer_group.segment_no != no
            or server_epoch not in (None, consumer_group.server_epoch)
        ):
            continue
        for known in [known for known in consumer_group.ledger.replications if known <= serial]:
            consumer_group.ledger.replications[known].waiting.pop(member, None)
            finish_replication(broker, partition, consumer_group, known)


def expect_no_more(broker: BrokerState, partition: Partition, no: int, member: MemberId) -> None:
    """A joining member is gone: no control record waits for it any more."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    for consumer_group in list(partition.consumer_groups.values()):
        if consumer_group.segment_no != no or (segment is not None and member in segment.eligible):
            continue
        for serial in list(consumer_group.ledger.replications):
            if serial in consumer_group.ledger.replications:
                consumer_group.ledger.replications[serial].waiting.pop(member, None)
                finish_replication(broker, partition, consumer_group, serial)


def finish_replication(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup, serial: int) -> None:
    """If all members have the control record, it counts from now on: tell the consumer, and continue.

    Rule `no-right-confirms-nothing` (J2): a server that gave up its right confirms nothing, because it no longer knows
    which members are joining. Without it:
      1. A lists B as eligible, and gets no answer. So A counts B as joining. B takes the right over.
      2. A cannot apply what B tells it, so it gives up its right (`changes-end-a-right`), and reads the coordinator.
      3. A takes an acknowledgement of k:5, waits for its own disk only, and confirms it.
      4. B grants k:5 again.
    """
    if consumer_group.segment_no not in partition.rights:
        return
    ledger, active = consumer_group.ledger, consumer_group.dispatcher.active
    replication = ledger.replications[serial]
    confirms = replication.confirms
    is_safer = ledger.finish_replication(serial)
    if is_safer is None:
        return
    if replication.acked == ledger.safe_acked:
        safe = SafeCursor(consumer_group.group_epoch, consumer_group.segment_no, replication.acked, replication.oldest)
        partition.safe_cursors = put(partition.safe_cursors, consumer_group.name, safe)
    if is_safer and active is not None:
        tell(broker, active, AckConfirmed(consumer_group.segment_no, ledger.safe_acked))
    _confirm_requests(broker, consumer_group, confirms)
    grants.on_durable(consumer_group, serial)
    waiting_keys.on_replicated(broker, consumer_group, serial)
    keyed = consumer_group.keyed
    if keyed is not None:
        keyed.handoff.is_common = True
    if keyed is not None and not keyed.handoff.is_begun:
        keyed.handoff.is_begun = True
        outcomes.thaw(broker, partition, consumer_group)
    go_on(broker, partition, consumer_group)
    forget_if_unused(partition, consumer_group)


def _confirm_requests(
    broker: BrokerState, consumer_group: ConsumerGroup, confirms: tuple[tuple[int, int, int], ...]
) -> None:
    """Tell consumers which of their requests with acknowledgements are durable on every eligible member.

    Rule `ack-copies` counts for single messages too.
    """
    if not confirms:
        return
    numbers = {(stream, subscription): number for stream, subscription, number in confirms}
    for consumer in consumer_group.consumers:
        number = numbers.get((consumer.stream, consumer.subscription), 0)
        if number > consumer.ack_confirmed:
            consumer.ack_confirmed = number
            tell(broker, consumer, AcksConfirmed(number))


def pump(broker: BrokerState, partition: Partition, segment_no: int) -> None:
    """The commit, the right or something else changed in a segment: deliver more of it if possible."""
    for consumer_group in list(partition.consumer_groups.values()):
        if consumer_group.segment_no == segment_no:
            pump_consumer_group(broker, partition, consumer_group)


def pump_all(broker: BrokerState, partition: Partition) -> None:
    """A consumer gave credit: deliver more to each consumer group of the partition if possible."""
    for consumer_group in list(partition.consumer_groups.values()):
        pump_consumer_group(broker, partition, consumer_group)


def pump_consumer_group(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> None:
    """Deliver what was held back, and read more."""
    if consumer_group.keyed is not None:
        grants.go_on(broker, partition, consumer_group)
    else:
        delivery.deliver_held_back(broker, partition, consumer_group)
        delivery.pump_consumer_group(broker, partition, consumer_group)
        reassignment.go_on(broker, partition, consumer_group)


def on_log_read(
    broker: BrokerState, partition: Partition, serial: int, group: str, batches: tuple[Batch, ...] | None
) -> None:
    """Batches were read for an exclusive consumer group: deliver them, and go on."""
    delivery.on_log_read(broker, partition, serial, group, batches)
    consumer_group = partition.consumer_groups.get(group)
    if consumer_group is not None:
        reassignment.go_on(broker, partition, consumer_group)
