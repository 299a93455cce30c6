"""Clusters of complete brokers: the production core and runtime, in processes of their own, on fakes.

    brokers        a slot with its disk, a process with the runtime, and what they require of the cluster (`Home`)
    coordinator    the coordinator, whose records the judge reads
    disks          disks that are modelled, or written by the real storage adapter
    remade_topics  a topic is deleted and made again
    topic_growth   a topic gets one more partition
    remade_consumer_groups  a consumer group is deleted and made again
    rebuilds       an administrator rebuilds a coordinator that lost records
    operator       an operator changes what it wants of broker groups
    cluster        all of these
    injector       the faults that only such a cluster can meet
    kinds          the names under which a world takes such a cluster

What changes a cluster while it runs knows it only as `Home`. Faults and the world know the rest.
"""
