"""State: what a broker knows. Rules about it are in the rooms above.

broker        what all parts share; with `directory`, `links`, `timers`, `streams` and `coordinator` in it
outbox        what a step leaves: effects, one write, and what waits until it is durable
partition     one partition; with `switching`, `copies`, `consumers` and `writing`, the bare data of those rooms
segment_log   the log of one segment on this member, and the producers in it
"""
