"""Consumers: consumer groups, one consumer of a partition active and the others standing by; and range reads.

A group's cursor is in one segment; the server of that segment delivers to the group. Acknowledgements and reservations
("delivered below, perhaps") are control records, durable on every eligible member before they count. When everything
below the sealed length is acknowledged, the group's cursor in the coordinator moves to the next segment, and only
then do the consumers hear of the end of this one.

    LOADING ──cursor read──▶ SERVING ──all acknowledged──▶ CROSSING ──cursor written──▶ (gone: END_OF_SEGMENT)
       └── cursor elsewhere ──▶ (gone: refused with the address of the server)

    head         a group is looked up, told something, forgotten
    subscribing  consumers come and go; who of them is active
    sessions     an active consumer that sends no heartbeats gives way to a standby
    serving      where the group's cursor stands, and whether this broker serves it there
    questions    people and consumers who only ask where that is
    delivery_attempts  how often this server gave a message to a consumer
    delivery     batches to the active consumer
    cursors      control records: from acknowledgements and reservations to the other members, and theirs to here
    progress     a control record became common, time passed: the group goes on
    crossing     the cursor moves to the next segment
    operations   a person rewinds, skips, pauses or resumes the group
    streams      what a consumer sends on its stream
    eligibility  members join those that may serve a segment
    ranges       range reads, which need no group
"""
