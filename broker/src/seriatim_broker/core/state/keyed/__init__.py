"""The dispatcher of a consumer group in which order counts within a key.

Keys with messages are *ready* (in the order in which they became so), *delayed* (by the time at which they become
ready), or *granted*: their first messages are with a consumer, under a token. A key is in at most one of these. A key
that is parked or forwarded is in none.

Most keys have exactly one message, which is ready or granted, and no record. Such a key is a *single*: an entry in a
dict and not an object of its own, because objects cost more time and memory than all the rest. `Grants.weigh` makes a
`Key` of a single, and a `Grant` of its grant, as soon as anything else happens to it: a second message, a failure, an
end of the grant without an acknowledgement.

    key         one key
    line        keys in line: ready ones, delayed ones, singles
    grants      which consumer works on which messages, and what is read for it
    lists       messages that were set aside
    forwarder   a message on its way to the dead-letter topic
    handoff     the state comes from the last server, and goes to the next one
    dispatcher  all of them together: what happens to a key and its messages
    frames      frames that are cut because not all of their messages have room
    room        keys are set aside so that more messages can be read
    rows        what is durable: the passed indexes and the records of keys
"""
