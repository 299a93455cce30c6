"""The product from outside: demos, faults, benchmarks and Kubernetes, all with real processes.

The modules here are what several of the programs share.

    demo           `make demo`: histories of aircraft while brokers fail
    demo_orders    `make demo-orders`: messages by key, while consumers, brokers and two aircraft fail
    demo_delayed   `make demo-delayed`: messages are fired at their time, while brokers are killed
    demo_spark     `make demo-spark`: the flights through Spark and back into a topic
    faults         `make faults`: random faults, and the judgement of all histories
    spark_faults   `make faults-spark`: faults at each moment of Spark's sink
    bench          `make bench`: measurements
    kubernetes     `make e2e`: the chart and the operator on a real Kubernetes

    observe        snapshots of a cluster, as plain values
    workers        child processes that talk with their parent in JSON lines
    usage          programs that take their settings from the environment
    distance       LATENCY and JITTER, for links between processes
    lateness       how late delayed messages come, and whether each comes once
    charts         pictures as SVG files
    pages          code blocks of the pages, run as a reader types them
    rebuilding     `seriatim coordinator rebuild` on a local cluster
    spark_session  a Spark session on this machine
"""
