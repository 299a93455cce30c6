"""The machine of a simulated broker: virtual time, and disk, coordinator and network in memory, with their faults.

Production modules never import this package.

    virtual_time           a queue of timers, and an event loop for each simulated process
    simulated_broker       one member run of a broker: the real runtime over a simulated machine

    memory_disk            a disk that may lose any suffix of its unflushed writes in a crash
    simulated_storage      storage over such a disk: slow, saturated or full, with flipped bits
    memory_database        a database in place of RocksDB
    adapter_storage        the real storage adapter over this database, with an image of what should be durable
    simulated_directory    identity file of a data directory
    simulated_bodies       bodies that are one number: the first message, and the others follow

    memory_coordinator     keys, revisions, leases and watches
    simulated_coordinator  a coordinator whose requests and answers take time and get lost
    memory_records         chains, cursors and death certificates as plain objects, for bare cores

    memory_network         connections between brokers, with delays, cuts and half-open ends
    paths                  cuts, counted by direction
"""
