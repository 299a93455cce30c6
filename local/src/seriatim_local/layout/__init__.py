"""The layout of a local cluster: which processes it has, and where. It follows from a few numbers.

Nothing here starts a process.

    plan      the processes and their addresses
    ports     a range of ports that no other program on this machine uses
    programs  the programs of the processes, as argument vectors
    names     names of victims and of ends of cuts, and the processes that they mean
"""
