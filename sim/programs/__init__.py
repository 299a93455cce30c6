"""The programs that act in a world: the client's ordering cores, each with an application that is drawn.

    clients           streams to brokers, and questions to them; all other modules use it
    producers         a producer of one partition
    suspicions        its questions about a silent master
    consumers         a consumer of an exclusive consumer group
    keyed_consumers   one of a group in which order is by key
    mode_consumers    one of a shared group or of an at-most-once group
    range_readers     a reader of ranges
    population        all of these in one world: they come, end, and are replaced
    spread_consumers  more consumers, over which partitions are spread
    carrier           the way of batches from a server to a master
    dead_letters      what servers of consumer groups give up
    delayed           what servers fire, and programs that cancel

A module here knows time, the coordinator's records and the judge, and no fault.
"""
