"""Plain values: what users pass to the client and get from it, how they are checked, and how they come from messages.

They ask no broker and know no other part of the client.

    records                  receipts, messages, topics, and what happens to a consumer
    headers                  the headers of a message, in their order and as a mapping
    settings                 how producers send and consumers read
    consumer_group_settings  how consumer groups are served, and keys of consumer groups that wait
    dead_letters             dead letters, and what became of those that were replayed
    delayed                  delayed messages that wait
    owners                   names that one program at a time has
    partitioner              the partition of a key
    tls                      the files for TLS
    errors                   the errors of a send whose outcome is not `ok`
    arguments                checks of what a program passes
    conversion               makes plain values of API messages
    topics                   reads topics from the records that brokers send
"""
