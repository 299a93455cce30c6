"""What a benchmark measures, and how it is shown.

Nothing here starts a cluster.

    figures  figures, each with its aim: a table for humans, JSON to compare runs
    latency  latencies of one workload, in a histogram
    curves   the picture of latencies
    machine  facts of the machine, and the processor time of processes
    usage    what the processes of each role used while a workload ran
"""
