"""Clusters in virtual time, from a seed: brokers, clients and faults in one process, and a judge that sees everything.

`world` is one run, in virtual time: there all parts are put together, and only programs and tests import it. A module
knows only rooms that come after its own in this list:

    run, chosen, explore  programs: the command line, the worlds that CI runs for a change, small worlds in which all
                          interleavings are tried
    mutants               planted bugs, which a run must find
    world                 one run, from its parts
    cores, whole          two kinds of clusters, see below
    injection             faults: when they strike, which broker they hit, and how they heal
    scene                 the record of all parts, which faults and clusters reach
    condition             what is copied, lost, and left to do
    publishing, people    programs that publish; administrators who operate on consumer groups
    programs              producers, consumers, readers of ranges
    judge                 what must always hold, a file for each rule
    basics                time, chance, limits, and what is required of a cluster
    faults                what may go wrong, drawn from the seed

There are two kinds:

    complete brokers   `whole`   production core and runtime: driver, links, directory, lease, election, topics,
                              healing, joining; each broker has an event loop and clocks of its own, and the network and
                              coordinator of `seriatim_broker.testing`
    bare cores      `cores`   only the cores, whose effects are carried out at once. Ten times as many worlds run in the
                              same time, which finds rare interleavings of the protocol. A failing seed is a story of
                              the protocol alone
"""
