"""The condition of a world: what is copied, what is lost and may still be lost, and what is left to do at the end.

    copies    what chain records and disks say: chains, lengths, copies
    health    lost disks, hung and full ones, and whether all is calm
    draining  what is not settled, copied or read yet; it also lets time pass

Faults, clusters and the end of a run look here; nothing here strikes.
"""
