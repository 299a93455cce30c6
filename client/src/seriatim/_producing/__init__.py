"""Producers: the way of a message from the send to its outcome.

The core (`seriatim._core`) decides. This package carries its decisions out.

    producer      the producer as users see it
    partitioning  chooses the partition of a message
    backlog       counts the messages that are taken and not settled; room, flush
    checks        refuses messages that a body cannot hold
    pending       a partition's messages that are not in a batch yet
    batching      decides when the next batch is cut: full, calm, lingered, flushed
    partition     a partition: its pending messages, its core (`seriatim._core.producer`), and the core's effects
    turns         decides when each partition is served
    routes        asks brokers where a partition accepts messages
    deliveries    brings the outcome of a batch to its sends
"""
