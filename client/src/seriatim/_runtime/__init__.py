"""What all parts of a client need to live in an event loop: where they work, how they end, and what they log.

It knows nothing about brokers.

    home     the process and the event loop in which the client was connected
    logs     the client's logger, whose handlers may raise
    failure  the first unexpected exception ends the producer or the consumer
    opening  a producer, a consumer or a client that begins when it is awaited or entered
    closing  `async with` closes what a user opened
    watch    a task in the background, until it is closed
    alarms   many alarms over one timer of the event loop
"""
