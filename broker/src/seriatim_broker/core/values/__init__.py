"""Values: objects that never change after they are made, and pure functions of them.

chain, segments, placement, positions, targets   the chain record of a partition, its transitions, and places in it
log, producers, writers                          the content of a disk: batches, producer tables; records of writers
messages                                         the messages between brokers
events, effects                                  what happens to a core, and what the core asks for
kinds                                            kinds and reasons, as enums
config, deleted                                  times and limits; deleted partitions
states                                           the base of the classes that do change: copying and comparing them
"""
