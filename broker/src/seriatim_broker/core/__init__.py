"""The broker's core: every decision about order, ownership and durability, and no I/O.

`broker.BrokerCore.step(event, now)` is the way in, the list of effects that it returns the way out. A part is a state
and functions `f(outbox, partition, ...)`; it calls the parts that stand below it here, never one above.

    broker, dispatch    which event, message or timer goes to which function
    links               other brokers: there, silent, gone; heartbeats
    record              the chain record at the coordinator: read, written
    learning            a newer record is known, and what is here agrees with it
    behind              the coordinator has lost decisions that this broker knows of

    routes              where to append, for whoever asks; complaints and suspicions
    replication         from the master to its slaves, and the commit
    fencing, preparing, quiescence    what a member answers to a switcher
    eligibility         members that join those who may serve a segment
    dropping            who waits for a partition whose topic is deleted is answered
    leaving             heads and members that leave a group which is cordoned or drained
    standing            what a member holds of segments, for whoever wants to stop another one
    quarantine          segments of which the chain says something else than this disk
    copying             segments that this member completes
    repair              segments whose copy here is damaged
    settle              the length of an UNSETTLED segment
    gaps                a segment that no disk has any more, declared by a person
    groups              consumer groups: a package with a map of its own
    right               who serves a segment
    tables              producer tables of segments that are over
    switch, attempts    from one segment to the next
    appending           producers' batches
    candidates          the groups that a head could go to
    disks               what members say of their disks: one that hangs counts as silent, a full one is left

    partition           the state of one partition, all parts together
    replica, producers  the log of one segment, and the producers in it
    outbox              what all parts share while a step runs: time, effects, writes, timers, links
    state               copying and freezing of states

    chain, log, messages, events, effects, config    values; `chain` also has the record's transitions
    placement, controller    pure functions for the controller, which is in the runtime
    rebuild             pure functions for the rebuilding of a coordinator that lost decisions
"""
