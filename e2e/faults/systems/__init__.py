"""The systems under test, and the access of the suite to them.

Nothing here decides which fault comes, or when.

    clusters     the clusters on which cases run: three groups of two
    namespaces   a network of kernel namespaces, in which packets are lost and delayed
    shims        libraries that are preloaded into the brokers' processes
    etcd_trio    an etcd of three members as one process
    admin_calls  admin calls to any broker that answers
"""
