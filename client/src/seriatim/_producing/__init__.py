"""What stands behind `Producer`: from a message that was taken to its outcome.

partitioning   which partition a message goes to
backlog        what was taken and is not settled; room, flush
pending        a partition's messages that are not in a batch yet
batching       when the next batch is cut: full, calm, lingered, flushed
partition      a partition: its queue, its core (`seriatim._core.producer`), and what the core's effects mean
turns          which partition is served when
routes         asking brokers where a partition accepts
deliveries     how an outcome reaches those who sent
"""
