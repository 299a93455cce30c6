"""Questions and requests of a local cluster to its brokers.

Each module is one kind of request. What a broker answers is not kept here.

    health          is a broker ready? One HTTP request to its admin port
    open_segments   the members of a partition's open segment
    broker_groups   drains of broker groups
    unserved        partitions on which messages wait and no consumer reads
    other_clusters  brokers that `seriatim cluster` did not start here
"""
