"""The client's decisions, without I/O: the same code runs under asyncio in the client and in the simulator.

No module here reads a clock, draws a random number or waits.

    producer        order and outcomes of sends; its parts are in the next five
    send_attempts   a batch over all its send attempts: stored, not stored, or not known
    producer_runs   the batches that are on their way together, and the window
    sequences       the batches in their order, with their numbers
    abandonment     the outcome of batches without an acknowledgement
    master          route, stream, questions, complaints, back-off
    producer_types  events and effects of a producer

    joining         how a consumer finds the server of a partition, and stays joined
    consumer        order of deliveries: the server, contiguity, and what may be acknowledged
    keyed_consumer  the same where order is by key: grants and acknowledgements
    consumer_types  events and effects of a consumer
    demand          how many messages each partition is asked for
    unserved        which partitions are served nothing, though they should be
    credit          how many bytes a broker may send on a consume stream
    ranges          how far a reader of a range is, and whether the next batch follows

    distance        how much may be on its way to a broker that is far
    state           twins and fingerprints, for tests and the simulator
"""
