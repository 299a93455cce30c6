"""Values: objects that never change after they are made, and pure functions of them.

chain        the chain record of a partition and its transitions
segment      one segment: its states, and its row in the record
segments     all segments of a chain, as a sequence that shares its parts with the one before
placement    order of the broker groups for a partition
positions    places in a partition, found by append time, by index, or by bytes
targets      places to which a consumer group may be moved

log          what a member keeps on its disk: batches, segments, preparations, cursors
producers    tables of the last batches of each producer
writers      records of writers, and their transitions
owners       owners of exclusive producers, as a master reads them
passing      which batches readers pass
sizes        how large batches and messages of a topic may be
delays       how long messages of a topic may be delayed
deleted      partitions that were deleted, as ranges of ids

keyed        modes in which order counts within a key, retry policies, grants
ledger_rows  rows of a ledger as bytes
delayed      rows of a delay ledger, and volleys of delayed messages
tokens       tokens of grants: a term and a counter in one number

messages     messages between brokers
events       what happens to a core
effects      actions that the core asks for

delayed_messages  events and effects of delayed messages

kinds        kinds and reasons, as enums
config       times and limits
states       base of the classes that do change: it copies and compares them
"""
