"""The metrics of a broker, for Prometheus.

broker            what this broker does: the registry, counters and histograms
topics            messages and bytes that this broker stored as the master of their partitions
consumer_groups   lag, waiting keys and the like of consumer groups that this broker serves
cluster           partitions, copies and broker groups, as the controller sees them
certificate_ends  when the certificates of this broker end
"""
