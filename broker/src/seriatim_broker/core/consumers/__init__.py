"""Consumer groups and range reads.

A consumer group's cursor is in one segment. The server of that segment delivers to the consumer group. Acknowledgements
and reservations ("perhaps delivered below") are control records: they count when every eligible member has them on its
disk. When everything below the sealed length is acknowledged, the cursor in the coordinator moves to the next segment.
Only then does the server tell the consumers that this segment has ended.

    LOADING ──cursor read──▶ SERVING ──all acknowledged──▶ CROSSING ──cursor written──▶ (gone: END_OF_SEGMENT)
       └── cursor elsewhere ──▶ (gone: refused with the address of the server)

What a broker knows of a consumer group is in `state.consumers`. A `ConsumerGroup` says where its cursor is and who
waits for it. It has a `Served` while this broker serves it: with the ledger, which says what is acknowledged and who
has that on disk, and the dispatcher, which says who is given what. Functions take a `Served`, or a `Seat` if they also
concern a consumer group that is not served here.

Modes `exclusive` and `broadcast` are served by `exclusive`: one consumer of a partition is active, and the others stand
by. Modes `key_ordered` and `shared` are served by `keyed`: all consumers are given messages, key by key.

Each room knows only those below it (the contract "Rooms of consumer groups" checks it); `keyed` and `exclusive` do not
know each other:

    groups     consumers, administrators and the coordinator: who is here, and where the cursor is
    keyed      messages are granted to consumers key by key
    exclusive  batches are delivered to the one active consumer
    cursors    how far a consumer group is: control records, the cursor's way to the next segment, what is gone
    ranges     range reads, which need no consumer group
"""
