"""Values: what never changes once it is made, and pure functions of it.

chain, segments, placement, positions, targets   the record of a partition, with its transitions; places in it
log, producers, writers                          what a disk holds: batches, producer tables, publications
messages                                         what brokers say to one another
events, effects                                  what happens to a core, and what it asks to be done
kinds                                            kinds and reasons, as enums
config, deleted                                  times and limits; partitions that are deleted
states                                           the base of classes that do change: copying and comparing them
"""
