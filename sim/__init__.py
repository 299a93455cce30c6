"""Clusters in virtual time, from a seed: brokers, clients and faults in one process, and a judge that sees everything.

`world` is one run: a cluster, its clients and a plan of faults, in virtual time. `cluster` says what a world needs of a
cluster. There are two kinds:

    whole brokers   `whole`   production core and runtime: driver, links, directory, lease, election, topics, healing,
                              joining; each broker has an event loop and clocks of its own, and the network and
                              coordinator of `seriatim_broker.testing`
    bare cores      `cores`   only the cores, whose effects are carried out at once. Ten times as many worlds run in the
                              same time, which finds rare interleavings of the protocol. A failing seed is a story of
                              the protocol alone

`judge` has a file for each rule that must hold. `run` is the command line: a seed again, many seeds, a swarm for
minutes, mutants.
"""
