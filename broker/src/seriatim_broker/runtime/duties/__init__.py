"""Duties: what each broker does from time to time for its own partitions and its own disk.

retention                drops old or excess messages in the partitions whose open segment this broker leads
unread                   how near retention is to messages that a consumer group has not read, for administrators only
delayed_counts           how many delayed messages wait, for metrics and for the limit of a topic
stage_floors             retention of staged data: raise the floor, look for decided publications, drop
deleted_consumer_groups  removes the control records of deleted consumer groups from this broker's disk
restart_gate             whether a broker may be restarted: asks which other members have its segments
"""
