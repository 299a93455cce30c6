"""Writing: append, replicate, commit.

appending         producers' batches on the master
replication       the master's side: it sends batches, and the commit moves
following         a follower's side
quiescence        the master comes to rest before a planned switch
carrying          a publication is carried out on one partition
publication_plan  where in its manifest a publication is
"""
