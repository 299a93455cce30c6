"""The client's decisions, without I/O: the same code runs under asyncio in the client and in the simulator.

Nothing here reads a clock, draws a random number or waits.

    producer        order and outcomes of sends: what an event means to
        attempts        a batch over all its attempts: stored, not stored, or nobody knows
        runs            what is on its way together, and the window
        sequences       the batches in their order, with their numbers
        giving_up       the outcome of what nobody acknowledged
        master          route, stream, questions, complaints, back-off
    consumer        order of deliveries: who serves, what is contiguous, what may be acknowledged
    producer_types, consumer_types    their events and effects
    state           twins and fingerprints, for tests and the simulator
"""
