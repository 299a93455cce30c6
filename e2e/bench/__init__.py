"""Benchmarks: how fast Seriatim is on this machine.

Each command is a module that `python -m` runs, and most are a target of make.

    run            `make bench`: single messages, fixed rates, bulk, an idle cluster, and gaps at faults
    compare        `make bench-compare`: is this checkout faster than another commit?
    consume        `make bench-consume`: how fast a partition is consumed by key
    drain          `make bench-drain`: how fast old messages are read and copied
    spark          `make bench-spark`: how fast Spark reads and writes a topic
    tables         how much longer a switch takes with many producers

    workloads      the workloads of `make bench`, from `workloads.yaml`
    gaps           how long a partition accepts nothing after a fault
    members        larger broker groups beside groups of two, in turns
    healing        how fast a new disk gets the copies of a lost one
    first_message  how long a program needs until its first acknowledged message
    program        what all commands share: a directory, a log, figures as JSON, an end at Ctrl-C

Rooms:

    load           what sends and reads while something is measured
    measures       figures, histograms, the machine
    peers          Kafka and NATS in the same run as Seriatim
    timeline       where the time of one message goes
"""
