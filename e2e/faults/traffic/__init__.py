"""What runs beside the faults: programs that send, read, publish and use features.

The suite starts these programs and tells them what to do. The programs do not know which fault comes.

    load             the load of a case, in the process that starts the clients
    client           a client process: a producer, or the readers of consumer groups
    keyed_consumers  consumers by key beside the load
    keyed_worker     a process with such consumers
    publications     publications beside the load
    publisher        the program that publishes
    features         what users use on a topic of its own
"""
