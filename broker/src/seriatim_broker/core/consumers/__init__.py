"""Consumer groups and range reads.

In a consumer group, one consumer of each partition is active, and the others stand by.

A consumer group's cursor is in one segment. The server of that segment delivers to the consumer group. Acknowledgements
and reservations ("perhaps delivered below") are control records: they count when every eligible member has them on its
disk. When everything below the sealed length is acknowledged, the cursor in the coordinator moves to the next segment.
Only then does the server tell the consumers that this segment has ended.

    LOADING ──cursor read──▶ SERVING ──all acknowledged──▶ CROSSING ──cursor written──▶ (gone: END_OF_SEGMENT)
       └── cursor elsewhere ──▶ (gone: refused with the address of the server)

What a broker knows of a consumer group is in three parts (`state.consumers`). The seat says where its cursor is and who
waits for it. The ledger says what is acknowledged, and who has that on disk. The dispatcher says who is given what.

    consumer_group  find the state of a consumer group, tell its consumers something, forget it
    subscribing  consumers come and go; which of them is active
    sessions     an active consumer that sends no heartbeats gives way to a standby
    serving      where the cursor of a consumer group is, and whether this broker serves it there
    questions    people and consumers ask where the cursor is and which broker serves it
    yielding     an active consumer hands its partition over to the one that should read it, which `spreading` chooses
    delivery_attempts  how often this server gave a message to a consumer
    delivery     batches go to the active consumer
    pumping      messages may be delivered that could not be before
    granting     messages go to consumers key by key
    handling     what consumers do with such messages: acknowledge, fail, extend, leave, be silent
    fetching     messages of a key that wait in an earlier segment come from a member that has it
    waiting_keys people list the keys that wait, release them, and pass over their first messages
    forwarding   after its last attempt, the first message of a key goes to the dead-letter topic
    handover     the state of keys moves to the server of the next segment
    gone         consumers are told what retention dropped, or what was declared lost
    cursors      control records go from the server to the other members
    progress     all members have a control record, or time passed: the consumer group continues
    crossing     the cursor moves to the next segment
    keeping      the server notes in the cursor that consumers are here, and the next term
    operations   a person rewinds, skips, pauses or resumes the consumer group
    streams      what a consumer sends on its stream
    eligibility  a member joins those that may serve a segment
    ranges       range reads, which need no consumer group
    figures      figures for the metrics
"""
