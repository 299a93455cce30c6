"""Peers: what the members know of one another and of the coordinator.

disks        what members say of their disks: one that hangs counts as silent, a full one is left
lanes        whether each lane of a link carries
versions     which forms of messages the other brokers read
updates      other members are told of a newer chain record
candidates   the broker groups that an open segment could go to
right        which member serves a segment to consumers
behind       the coordinator has lost decisions that this broker knows of
"""
