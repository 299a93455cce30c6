"""Range reads: messages of a partition for readers without a consumer group.

surveys      what this member knows of the partition, and how far it may read a segment
range_reads  batches of a range, one step at a time
"""
