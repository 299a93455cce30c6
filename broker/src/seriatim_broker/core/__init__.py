"""The broker's core: every decision about order, ownership and durability, and no I/O.

`broker.BrokerCore.step(event, now)` is the way in, the list of effects that it returns the way out. The rules are
functions `f(broker, partition, ...)` of the state of this broker and of one partition. They are in rooms; each room
knows only those below it (the contract "Rooms of the core" checks it):

    broker       the way in: one event, the timers that are due, the effects
    dispatch     which event, message or timer goes to which function; links to other brokers; a newer chain record
    control      what the controller asks for, and what it decides with: drains, retention, restarts, balance, rebuilds
    writing      append, replicate, commit; publications that are carried out
    delayed      delayed messages: fired when they are due, or cancelled
    consumers    consumer groups, and range reads
    copies       segments that this member completes, repairs, settles, or declares lost
    switching    from one segment to the next, and what members answer to a switcher; routes
    peers        what members know of one another: disks, lanes, versions, the serving right, lost decisions
    state        what a broker and a partition know, the bare data of all rooms, and the outbox of a step
    values       chain records, batches, messages, events, effects, limits: what never changes once it is made
"""
