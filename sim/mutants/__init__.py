"""Planted bugs: rules of the product, removed one at a time, each of which the simulation must find.

catalogue        all planted bugs by name
mutation         one of them, and how it is switched on
rows             bugs that are written as a change of text
slow             names of those that only `make test-slow` looks for

writing          fences, commits, switches, settlements, order of a producer
producer_tables  what tables of producers keep, and for how long
publishing       publications
copies           copies of sealed segments
empty_segments   empty segments that leave the record of a chain
groups           broker groups that are cordoned, drained, rolled or balanced
reading          what is served, by which member, to which consumer group
servers          which member may deliver or become the server
ranges           range reads
keyed            consumer groups in which order is by key
modes            shared and at-most-once groups, and partitions spread over consumers
operations       rewinds, skips, pauses
dead_letters     dead letters
delayed          delayed messages
retention        what may be dropped, and which readers must know
topics           deleted topics and consumer groups that are made again
silence          when a broker counts as silent
coordinator      a coordinator that refuses to write, or goes back in time
client           ordering core of the client
runtime          what the core believes of the runtime
storage          what a broker believes of the storage adapter
crossings        bugs where two features meet
"""
