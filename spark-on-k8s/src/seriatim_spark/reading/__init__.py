"""How Spark reads a topic: from ranges of offsets to the rows of a task.

Planners run in the driver. They ask brokers through one port, `brokers.Brokers`, and decide in modules that need
neither Spark nor a client: `message_counts`, `admission`, `task_plan`, `contiguity`.

    brokers         what planners ask brokers: where partitions begin and end, which messages are between
    batch_plan      a batch read: the range of each partition, and the ranges of each task
    stream_plan     a streaming read: where a query begins, and where the next micro-batch ends
    admission       how many of the waiting messages go into a micro-batch
    message_counts  messages between two offsets, and the offset some messages further on
    units           ranges of partitions as units of tasks, for batch and streaming
    task_plan       which task reads which units
    task            the work of a task: it reads its units and gives rows to Spark
    contiguity      the rows of a task are all rows of its range, each once and in order
    lag             how many messages a query has not read yet
"""
