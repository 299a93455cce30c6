"""Writing: append, replicate, commit.

appending         producers' batches on the master
replication       the master's side: it sends batches, and the commit moves
following         a slave's side
quiescence        the master holds back new batches before a planned switch
carrying          a master appends the rows of a publication
publication_plan  where in a publication a master continues
"""
