"""Reads topics from the records that brokers send."""

from __future__ import annotations

from typing import Final

from seriatim_api.delay_limits import delay_limits_of
from seriatim_api.v1 import broker_pb2, records_pb2

from seriatim._values.conversion import value_of
from seriatim._values.records import Topic, TopicSettings

_STATES: Final = {
    records_pb2.TOPIC_STATE_CREATING: "CREATING",
    records_pb2.TOPIC_STATE_READY: "READY",
    records_pb2.TOPIC_STATE_DELETING: "DELETING",
}


def is_same(known: Topic, found: Topic) -> bool:
    """Whether a topic is the one that was known before, and not a new one under its name.

    Rule `rebuilt-is-the-same` (I13): a topic is known by its partition ids, which no other topic ever gets. A rebuild
    of the coordinator gives a topic whose record was lost a new incarnation. Without it:
      1. The coordinator loses its data. Producers and consumers wait.
      2. An administrator rebuilds it. The topic is there with all its messages, under another incarnation.
      3. The clients take it for a new topic. They end, and say that theirs was deleted and made again.
    The rebuild may know fewer partitions than there were.

    Partition ids are unique only within a cluster, and each cluster counts from the same number. A rebuild keeps the
    cluster's id, so a topic in a cluster with another id is another one. Without it:
      1. The cluster is removed with all its disks. A new one is made at the same address, with a topic of that name.
      2. The topic has the same partition ids. The clients continue in it as if it had been rebuilt.
      3. The consumers wait at offsets of the old one, and the producers' messages begin in the middle.
    """
    if known.cluster_id and found.cluster_id and known.cluster_id != found.cluster_id:
        return False
    count = min(found.partition_count, known.partition_count)
    has_same_ids = found.partition_ids[:count] == known.partition_ids[:count]
    return found.incarnation == known.incarnation or (count > 0 and has_same_ids)


def told_topic(answer: broker_pb2.GetTopicResponse) -> Topic:
    """The topic that a broker reports, and of which cluster it is."""
    return topic_of(answer.topic, answer.cluster_id)


def topic_of(record: records_pb2.TopicRecord, cluster_id: str = "") -> Topic:
    """The topic as users see it, from the record that brokers send."""
    return value_of(
        Topic,
        record,
        state=_STATES.get(record.state, "UNKNOWN"),
        settings=value_of(TopicSettings, record.settings, **delay_limits_of(record.settings)._asdict()),
        cluster_id=cluster_id,
    )
