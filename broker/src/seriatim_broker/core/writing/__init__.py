"""Writing: append, replicate, commit.

appending         a producer's batches on the master, and when the replies leave
admission         whether an unknown producer comes into the table, and which one it pushes out
exclusive_producers  which batches are those of the owner of a name
replication       the master's side: it sends batches, and the commit moves
following         a slave's side
quiescence        new batches are held back before a planned switch
publication_rows  a master appends the rows of a publication
publication_plan  where in a publication a master continues
"""
