"""`make faults-spark`: the sink of Spark runs while its processes are killed at chosen moments."""
