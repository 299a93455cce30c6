"""Peers: what the members know of one another and of the coordinator.

disks           what members say of their disks: a member whose disk hangs counts as silent, a full disk is left
lanes           whether each lane of a link delivers messages
versions        which forms of messages the other brokers read
updates         notifies other members of a newer chain record
candidates      the broker groups that an open segment could go to, best first
right           which member serves a segment to consumers
lost_decisions  notices that the coordinator has lost decisions, and stops writes until it has them again
"""
