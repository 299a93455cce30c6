"""Clusters in virtual time, from a seed: brokers, clients and faults in one process, and a judge that sees everything.

There are two floors. Modules that are not named here are common to both (virtual time, disks, clients, consumers, the
plan of faults, the judge, the story):

    whole brokers   `runtime_world`     production core and runtime: driver, links, directory, lease, election, topics,
                    `runtime_brokers`   healing, joining; each broker has an event loop and clocks of its own, and the
                                        network and coordinator of `seriatim_broker.testing`
    bare cores      `world`, `brokers`  only the cores, whose effects are carried out at once. Ten times as many worlds
                    `network`           run in the same time, which finds rare interleavings of the protocol. A failing
                    `coordinator`       seed is a story of the protocol alone

`run` is the command line: a seed again, many seeds, a swarm for minutes, mutants.
"""
