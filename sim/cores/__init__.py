"""Clusters of bare cores: brokers, their network and the coordinator are modelled; the runtime is left out.

    brokers      a slot with its disk, and a process around a `BrokerCore`
    network      links between brokers
    coordinator  requests of brokers to the records
    cluster      all of these; it is the runtime, the controller and the supervisor
    injector     the faults that only such a cluster can meet
    kind         the name under which a world takes such a cluster

A seed is a story of the protocol alone.
"""
