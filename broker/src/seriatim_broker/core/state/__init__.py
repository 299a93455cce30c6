"""State: what a broker knows. The rules about it are in the rooms (packages of the core) that import this one.

broker       what all parts share: identity, time, and the state that belongs to no single partition
directory    brokers, disks and broker groups, as the coordinator says
links        links to the other brokers, and which partitions need them
timers       when the core must be woken, and which part of it
streams      consumers that are connected
coordinator  whether the coordinator takes writes, and whether it has lost decisions
outbox       what a step leaves: effects, one write, and everything that waits until the write is durable

partition    one partition; its parts are below
segment_log  the log of one segment on this member: messages, commit, fence
writing      batches that are about to be appended: of publications, and held back by a planned switch
copies       segments that are copied, repaired or settled, and producer tables of other members
switching    switches: its own, those of other switchers, and requests that wait for them

consumers    consumer groups on a partition, and readers of ranges
ledger       what a consumer group has acknowledged, and which members have that on disk
dispatcher   which consumer is given messages, and how far
keyed        the same where order counts within a key
window       which indexes are passed in such a consumer group
delayed      what the server of a segment knows of the delayed messages in it

numbered_sending  what a server appends to another partition, each item once: dead letters and volleys
"""
