"""Dispatch: each event goes to the rooms that it concerns.

handlers         which event, message and timer goes to which function
partitions       the partitions that this broker knows
coordinator      events of the coordinator that concern many partitions
links            other brokers are there, silent or gone; heartbeats
record           the chain record was read from the coordinator, or written to it
reconciliation   a newer chain record is known, and the logs here are made to agree with it
folded_segments  segments that were folded in the record leave the disk
quarantine       segments whose chain record contradicts this disk
deleted_topics   a topic is deleted: requests that wait for its partition are answered
"""
