"""Dispatch: what happens goes to the rooms that it concerns.

handlers     which message and which timer goes to which function
links        other brokers are there, silent or gone; heartbeats
record       the chain record at the coordinator was read or written
learning     a newer chain record is known, and what is here is made to agree with it
folding      segments that left the record leave the disk
quarantine   segments of which the chain says something else than this disk
dropping     a partition is deleted: requests that wait for it are answered
"""
