"""`make faults-spark`: the sink of Spark, while its processes are killed at chosen moments."""
