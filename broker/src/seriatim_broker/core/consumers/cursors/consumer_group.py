"""The state of one consumer group on one partition, as this broker knows it."""

from __future__ import annotations

from ...state.broker import BrokerState
from ...state.consumers import Beginning, ConsumerGroup, ConsumerGroupPhase, KeyedServed, Seat, Served
from ...state.dispatcher import Consumer
from ...state.partition import Partition
from ...values.effects import Deliver, DeliveryEvent, WriteCursor
from ...values.states import drop, put


def consumer_group_of(
    broker: BrokerState, partition: Partition, group: str, begins: Beginning | None = None
) -> ConsumerGroup:
    """The state of a consumer group here. If this broker has none, make it, and read the chain and the cursor.

    `begins` counts only if the consumer group has no cursor. None: an administrator asks, or a broker, and neither says
    that.

    Rule `consumers-say-how` (CORE, I2): a consumer says how its group begins, also if others asked about it before it.
    Without it:
      1. An administrator asks about the keys of a group, and its server reads that the group is key-ordered.
      2. An older copy of the coordinator is restored, without the group. A consumer asks where the group is served.
      3. The server reads that there is no cursor, and writes one for the administrator's question: of an exclusive
         group. Its consumers are refused.
    In the same way a new group would begin at the first message, although its consumer asks for later ones only.
    """
    consumer_group = partition.consumer_groups.get(group)
    if consumer_group is None:
        consumer_group = ConsumerGroup(group, begins)
        # Rule `left-is-known` (I4, K1): a read that began before a consumer group was forgotten here arrives late, if
        # it gives an older cursor. Without it:
        #   1. This member serves segment 1. It begins to read the cursor, for a question.
        #   2. It writes that the cursor moves to segment 2, and forgets the consumer group.
        #   3. A consumer that has not heard of segment 2 joins here. Then the answer arrives: segment 1.
        #   4. This member grants k:5 again, which it has handed over to the server of segment 2.
        consumer_group.cursor_revision = partition.left_revision
        partition.consumer_groups = put(partition.consumer_groups, group, consumer_group)
        partition.read_chain(broker)
        Seat(broker, partition, consumer_group).read_cursor()
    elif consumer_group.begins is None:
        consumer_group.begins = begins
    return consumer_group


def serving_of(partition: Partition, group: str) -> Served | None:
    """The consumer group, if messages may be delivered to it here."""
    consumer_group = partition.consumer_groups.get(group)
    return consumer_group.serving if consumer_group is not None else None


def keyed_of(partition: Partition, group: str) -> KeyedServed | None:
    """The consumer group, if it is served here key by key."""
    consumer_group = partition.consumer_groups.get(group)
    served = consumer_group.served if consumer_group is not None else None
    return served if isinstance(served, KeyedServed) else None


def tell(broker: BrokerState, consumer: Consumer, event: DeliveryEvent) -> None:
    """Send something to one subscription."""
    broker.out.emit(Deliver(consumer.stream, consumer.subscription, event))


def unanswered(consumer_group: ConsumerGroup) -> WriteCursor | None:
    """The transaction that moves the cursor with a handoff, as long as its outcome is not known.

    Rule `unknown-stays-frozen` (J2): until that is known, the consumer group stays frozen. The same transaction is
    tried again: it succeeds, or finds that the cursor or the chain has changed. Without it:
      1. A hands over, and writes the cursor. It has no answer. It reads the cursor, which has not moved, and continues.
      2. A consumer acknowledges k:5, and A confirms that.
      3. The coordinator carries out the write. The next server begins from the handoff, and grants k:5 again.

    Rule `unknown-is-repeated` (J2): only the answer to exactly that transaction says what has become of it, and no
    newer chain record does. It needs no serving right, because it compares the chain record. Without it:
      1. A writes the cursor, and has no answer. It reads the cursor, which has not moved. Another member is silent, so
         A may not deliver.
      2. The coordinator carries out the write. Then A removes the silent member from the chain record.
      3. A sees that the write cannot be carried out any more, and takes it for one that never was. A grants k:5, and
         so does the next server.
    """
    outgoing = consumer_group.outgoing
    return outgoing.sent if outgoing is not None else None


def forget_if_unused(partition: Partition, consumer_group: ConsumerGroup) -> None:
    """Forget a consumer group if it has no consumers, questions or requests, and nothing of it is still to be written.

    Rule `dirty-stays` (J4): a change that waits for its control record keeps the consumer group here. Without it:
      1. The dead letter of k:5 is stored, and k:5 is passed. The control record would be written 20 ms later.
      2. No consumer is left, so the consumer group is forgotten. On all disks k:5 is still on its way.
      3. A consumer joins next week, and the dead letter is sent again. By then the table of the dead-letter topic may
         have forgotten the first one.

    Rule `under-way-is-kept` (J2, J5): a handoff that may still be carried out keeps the consumer group here. It is
    written again until the coordinator says what has become of it. Without it:
      1. A hands over, and writes the cursor. Its last consumer leaves. The transaction has no answer.
      2. A reads the cursor, which has not moved, and forgets the consumer group.
      3. A consumer joins. A grants k:5, and confirms its acknowledgement.
      4. The coordinator carries out the write. The next server begins from the handoff, and grants k:5 again.
    """
    served = consumer_group.served
    is_used = (
        (served is not None and served.is_serving and served.ledger.dirty)
        or consumer_group.consumers
        or consumer_group.questions
        or (served is not None and served.ledger.replications)
        or consumer_group.operations
        or consumer_group.key_requests
        or consumer_group.passes_alone
        or consumer_group.is_forwarding
        or unanswered(consumer_group) is not None
    )
    if not is_used and consumer_group.phase is not ConsumerGroupPhase.CROSSING:
        forget(partition, consumer_group)
        given = consumer_group.dispatcher.given
        if served is not None and max((given.below, *(end for end, _ in given.ends))) <= served.ledger.acked:
            partition.given = drop(partition.given, consumer_group.name)  # all that was given is acknowledged


def forget(partition: Partition, consumer_group: ConsumerGroup) -> None:
    """Forget what this member knows of a consumer group, but for the revision of its cursor (`left-is-known`)."""
    partition.left_revision = max(partition.left_revision, consumer_group.read_from)
    partition.consumer_groups = drop(partition.consumer_groups, consumer_group.name)


def consumer_group_with(partition: Partition, stream: int, subscription: int) -> ConsumerGroup | None:
    """The consumer group of a subscription; None if the subscription has ended."""
    for consumer_group in partition.consumer_groups.values():
        for consumer in consumer_group.consumers:
            if (consumer.stream, consumer.subscription) == (stream, subscription):
                return consumer_group
    return None
