"""All kinds of faults, and what a fault is.

A new kind is a class in one of these modules, with an entry in the catalogue of the suite.

    fault               what a fault is, and the `Scene` on which it acts
    processes           brokers, the coordinator and clients are killed or frozen
    network             cuts of links, in both directions or in one
    disks               slow, full, failing, emptied or older disks, and a power cut
    damage              bits that flip on a disk
    loss                both disks of a broker group are lost
    coordinator         faults of the coordinator alone
    clocks              wall clocks that jump
    death_certificates  a death certificate of a member run that still lives
    delayed             what strikes delayed messages that wait in a sealed segment
    switches            many switches in a row, or one inside another
    balance             open segments that are all on one broker group
    broker_groups       drains of broker groups, and disks that are replaced by name
"""
