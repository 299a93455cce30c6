"""Consumers: the way of messages from a stream to the application, and of acknowledgements back.

The core (`seriatim._core`) decides. This package carries its decisions out.

    consumer            the consumer as users see it, where one consumer at a time reads a partition
    keyed_consumer      the consumer as users see it, where order is by key
    base                what consumers of all modes share
    subscription        a partition: its core (`seriatim._core.consumer`), and the core's effects
    keyed_subscription  the same where order is by key, with the grants
    streams             the streams to the servers, which partitions share
    servers             asks brokers for the server of a partition
    unserved            notices partitions that are served nothing, though they should be
    events              turns a broker's events about a subscription into events of the core
    inbox               batches that wait for the application; it makes messages and tables of them
    handlers            the application's function for one message, and what its outcome means
    pools               calls such functions in threads and processes
    process_marks       which message a process of a pool had when it died
"""
