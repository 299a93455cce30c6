"""Publishing: rows are staged on brokers, and then all of them are published at once.

Staging uses the parts of producers, and no producer uses this package.

    writer   the writer as users see it
    staging  stages rows on the masters of their partitions
    chunks   what was staged, and what a publication of it contains
"""
