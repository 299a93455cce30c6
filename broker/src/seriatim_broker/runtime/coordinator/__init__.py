"""What the brokers keep in the coordinator: keys, records, and watches of them.

keys, records            a function for each kind of key; records from values of the core, and back
chain_layout, pages      long chains: the newest segments are in the record, older ones in pages
chain_list               all chains of the cluster, page by page
forms                    whether all registered brokers read a form of records; during an upgrade some do not
group_epochs             the floor of group epochs, which stays when cursors of deleted consumer groups are removed
consumer_group_settings  the settings with which a consumer group begins on one more partition
mirror                   a copy in memory of all keys under a prefix, kept current by a watch
operator_lease           of two operators that act at once, only the one with the newer Lease changes anything
rebuilt_watches          watches that end when the coordinator was rebuilt, so that copies are listed again
stage                    the stage topic: its incarnation and settings
topic_feed               topics and chains for programs that watch all of them: first everything, then what changes
topic_changes            calls wait until a topic has grown, was deleted, or was made again
topic_limits             partitions of topics, and limits: of sizes, of delays, and who may send
write_refusals           whether the coordinator takes writes
writer_conditions        what a transaction that changes a writer's record compares
"""
