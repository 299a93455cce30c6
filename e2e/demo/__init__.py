"""`make demo`: a consumer rebuilds the history of each aircraft while brokers fail, and it must equal the file.

`e2e.demo_orders` and `e2e.demo_spark` use most of these modules, too.

    command    the program around a demo: settings, display, report
    settings   QUICK, SEED, OUT, LATENCY and JITTER
    run        a run of a demo with flights, from an empty directory to the outcome
    histories  the demo itself: a consumer reads all partitions
    flights    the input: flights out of New York in 2013, as events

    producer   a process that sends the events
    consumer   a process that reads them and writes histories
    member     common part of the processes with consumers
    rebuild    the consumer's work, and the same from the file

    faults     which fault comes next, and whom it strikes; pure
    striking   carries the faults out and measures them
    gaps       how long a partition accepted nothing; pure

    live       display while a demo runs
    segments   segments of all partitions in time
    picture    a run as a picture
    report     table, verdict, last line
"""
