"""`make demo-spark`: the flights of `make demo` through Spark, and back into a topic.

run        flights go into a topic, an archive and a table; then a replay copies them into a second topic
strikes    the replay, whose processes are killed again and again
comparing  whether both topics have the same rows, and the table the last event of each aircraft
picture    rows in time, and what was killed when
"""
