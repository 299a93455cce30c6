"""Consumer groups in which one consumer of a partition is active, and the others stand by.

delivery      batches go to the active consumer, which acknowledges them
activation    a consumer becomes active, or stands by
assignment    which consumer should read the partition
reassignment  the active consumer hands the partition over to the one that should read it
"""
