"""The loads of benchmarks: what sends and reads on a cluster while something is measured.

Each load counts only messages that were acknowledged.

    setup         a cluster, a topic on it, and a sender whose gaps are measured
    bulk          tables, as fast as possible
    measurement   the loads of `make bench`, and what was measured
    delayed       the loads of delayed messages, and what was measured
    verify        is stored what was counted?
    keyed_sender  a child process that sends messages with keys
    keyed_holder  a child process that takes messages and never ends its work
"""
