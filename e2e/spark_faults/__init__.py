"""`make faults-spark`: the sink of Spark, while what it consists of is killed at chosen moments."""
