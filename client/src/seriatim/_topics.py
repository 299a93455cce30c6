"""Reads topics from the records that brokers send."""

from __future__ import annotations

from typing import Final

from seriatim_api.v1 import records_pb2

from seriatim._records import Topic, TopicSettings

_STATES: Final = {
    records_pb2.TOPIC_STATE_CREATING: "CREATING",
    records_pb2.TOPIC_STATE_READY: "READY",
    records_pb2.TOPIC_STATE_DELETING: "DELETING",
}


def topic_of(record: records_pb2.TopicRecord) -> Topic:
    """The topic as users see it, from the record that brokers send."""
    settings = record.settings
    return Topic(
        record.name,
        record.incarnation,
        _STATES.get(record.state, "UNKNOWN"),
        tuple(record.partition_ids),
        TopicSettings(
            settings.flush,
            settings.message_size_bytes_max,
            settings.batch_size_bytes_max,
            settings.retention_ms,
            settings.chain_width,
            settings.retention_bytes,
            settings.retain_unread,
            settings.unread_ms_max,
            settings.unread_bytes_max,
            settings.retention_acts,
        ),
        record.created_at_ms,
    )
