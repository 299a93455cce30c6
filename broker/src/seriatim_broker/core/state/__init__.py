"""State: what a broker knows. The rules about it are in the rooms (packages of the core) that import this one.

broker        what all parts share; contains `directory`, `links`, `timers`, `streams` and `coordinator`
outbox        what a step leaves: effects, one write, and everything that waits until the write is durable
partition     one partition; `switching`, `copies`, `consumers` and `writing` have the data of the rooms of that name
ledger        what a consumer group has acknowledged, and which members have that on disk
dispatcher    which consumer is given messages, and how far
keyed         the same where order counts within a key: keys in line, grants, lists, forwarder, handoff
segment_log   the log of one segment on this member, and its producers
"""
