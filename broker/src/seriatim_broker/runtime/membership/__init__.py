"""This broker as a member of its cluster, and what it knows of the other members.

registration      how a broker joins: its identity, its disk, and its member run
lease             the broker's lease at the coordinator, a hint to others that it runs
election          elects the controller: a key under the lease of one broker
directory         the brokers of the cluster, their addresses, and the intents of their broker groups, mirrored
external_address  the address at which clients outside the brokers' network reach this broker
watermarks        how far this broker's disk was durable when it noted it last
lost_records      whether the coordinator still has what it had
wall_clocks       the wall clocks of the live brokers: one clock that is ahead removes nothing
"""
