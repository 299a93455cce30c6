"""What a world begins with: its time and chance, its limits, and what it requires of a cluster.

    schedule    virtual time, the source of random numbers, and `Violation`
    story       events and effects as short lines
    interfaces  what a world requires of a cluster: brokers and processes, the network, the coordinator
    batches     batches as producers send them, and as masters place them
    distances   how far apart processes are
    limits      the limits and times of brokers, drawn from the options
    setting     all of these for one world, before anything in it is made

It leaves to `sim.faults` what may go wrong, and to all other rooms what happens.
"""
