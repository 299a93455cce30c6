"""A consumer group continues: all members have a control record, time has passed, or the chain record has changed.

Then the server may deliver what it held back, read more, or cross.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ...peers import disks, right
from ...state.broker import BrokerState
from ...state.consumers import KeyedServed, Served
from ...state.partition import Partition
from ...values.effects import AckConfirmed, AcksConfirmed
from ...values.log import Batch, SafeCursor
from ...values.states import put
from ..cursors import crossing
from ..cursors.consumer_group import forget_if_unused, serving_of, tell
from ..exclusive import delivery, reassignment
from ..keyed import grants, handoff, outcomes, waiting_keys


def retry(broker: BrokerState, partition: Partition, segment_no: int) -> None:
    """Time has passed, or a certificate or a record has come: try to deliver, to read and to cross in this segment."""
    for consumer_group in list(partition.consumer_groups.values()):
        served = consumer_group.serving
        if served is not None and served.segment.no == segment_no:
            _chase_replications(served)
            go_on(served)


def go_on(served: Served) -> None:
    """Deliver what was held back, read more, and cross, as far as each is possible now.

    If there is state of keys, hand it over before the cursor moves.
    """
    if isinstance(served, KeyedServed):
        if served.group.key_requests:
            waiting_keys.go_on(served)
        grants.go_on(served)
        if served.keyed.handoff.unread is not None:
            return  # which keys have messages is not known yet
        if served.keyed.line.keys or served.keyed.line.singles:
            handoff.hand_off_if_done(served)
            return
    else:
        pump_consumer_group(served)
    crossing.cross_if_done(served)


def on_keys_due(served: KeyedServed) -> None:
    """A delay or a deadline of a key may be over, or a handoff has no answer."""
    outcomes.end_late(served)
    go_on(served)


def _chase_replications(served: Served) -> None:
    """Start to remove the members that control records wait for, if they are silent or their disks hang.

    If the disk of this member hangs, ask the other eligible members to take the serving right.
    """
    broker, partition = served.broker, served.partition
    if not served.ledger.replications:
        return
    no, waited_for = served.segment.no, served.ledger.waited_for
    if waited_for.intersection(right.unfit_members(broker, partition, no)):
        right.seek(broker, partition, no)
    if broker.member in waited_for and disks.is_hung(broker, broker.member):
        right.offer(broker, partition, no)
    for member in [member for member in right.joining(partition, no) if disks.is_hung(broker, member)]:
        right.stop_joining(partition, no, member)
        expect_no_more(partition, no, member)
    served.retry_in(broker.config.heartbeat_us)


# ---- control records become common ----------------------------------------------------------------------


def expect_no_more(partition: Partition, no: int, member: MemberId) -> None:
    """A joining member is gone: no control record waits for it any more."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    for consumer_group in list(partition.consumer_groups.values()):
        served = consumer_group.served
        if served is None or served.segment.no != no or (segment is not None and member in segment.eligible):
            continue
        for serial in list(served.ledger.replications):
            if serial in served.ledger.replications:
                served.ledger.replications[serial].waiting.pop(member, None)
                finish_replication(served, serial)
    firing = partition.firing.get(no)
    if firing is not None and not (segment is not None and member in segment.eligible):
        for replication in firing.ledger.replications.values():
            replication.waiting.pop(member, None)


def finish_replication(served: Served, serial: int) -> None:
    """If all members have the control record, it counts from now on: notify the consumer, and continue.

    Rule `no-right-confirms-nothing` (J2): a server that gave up its right confirms nothing, because it no longer knows
    which members are joining. Without it:
      1. A lists B as eligible, and gets no answer. So A counts B as joining. B takes the right over.
      2. A cannot apply what B sends it, so it gives up its right (`changes-end-a-right`), and reads the coordinator.
      3. A takes an acknowledgement of k:5, waits for its own disk only, and confirms it.
      4. B grants k:5 again.
    """
    consumer_group = served.group
    if consumer_group.segment_no not in served.partition.rights:
        return
    ledger, active = served.ledger, served.dispatcher.active
    replication = ledger.replications[serial]
    if replication.waiting:
        return
    del ledger.replications[serial]
    is_safer = replication.acked > ledger.safe_acked
    ledger.safe_acked = max(ledger.safe_acked, replication.acked)
    ledger.safe_reserved = max(ledger.safe_reserved, replication.reserved)
    if replication.acked == ledger.safe_acked:
        safe = SafeCursor(consumer_group.group_epoch, consumer_group.segment_no, replication.acked, replication.oldest)
        served.partition.safe_cursors = put(served.partition.safe_cursors, consumer_group.name, safe)
    if is_safer and active is not None:
        tell(served.broker, active, AckConfirmed(consumer_group.segment_no, ledger.safe_acked))
    numbers = {(stream, subscription): number for stream, subscription, number in replication.confirms}
    for consumer in consumer_group.consumers if numbers else ():  # rule `ack-copies` counts for single messages too
        number = numbers.get((consumer.stream, consumer.subscription), 0)
        if number > consumer.ack_confirmed:
            consumer.ack_confirmed = number
            tell(served.broker, consumer, AcksConfirmed(number))
    if isinstance(served, KeyedServed):
        if served.keyed.grants.unsent:
            grants.on_durable(served, serial)
        if served.group.key_requests:
            waiting_keys.on_replicated(served, serial)
        served.keyed.handoff.is_common = True
        if not served.keyed.handoff.is_begun:
            served.keyed.handoff.is_begun = True
            outcomes.thaw(served)
    go_on(served)
    if not consumer_group.consumers:
        forget_if_unused(served.partition, consumer_group)


def pump(partition: Partition, segment_no: int) -> None:
    """The commit, the right or something else changed in a segment: deliver more of it if possible."""
    for consumer_group in list(partition.consumer_groups.values()):
        served = consumer_group.serving
        if served is not None and served.segment.no == segment_no:
            pump_consumer_group(served)


def pump_all(partition: Partition) -> None:
    """A consumer gave credit: deliver more to each consumer group of the partition if possible."""
    for consumer_group in list(partition.consumer_groups.values()):
        if consumer_group.serving is not None:
            pump_consumer_group(consumer_group.serving)


def pump_consumer_group(served: Served) -> None:
    """Deliver what was held back, and read more."""
    if isinstance(served, KeyedServed):
        grants.go_on(served)
    elif served.is_serving:
        delivery.deliver_held_back(served)
        delivery.pump_consumer_group(served)
        reassignment.go_on(served)


def on_log_read(
    broker: BrokerState, partition: Partition, serial: int, group: str, batches: tuple[Batch, ...] | None
) -> None:
    """Batches were read for an exclusive consumer group: deliver them, and continue."""
    delivery.on_log_read(broker, partition, serial, group, batches)
    served = serving_of(partition, group)
    if served is not None:
        reassignment.go_on(served)
