"""`make faults-spark`: the sink of Spark runs while its processes are killed at chosen moments.

run        runs of the sink, each with a fault that its seed chooses
driver     a driver that copies topics, as its parent says
processes  drivers with all processes that they start
striking   the sink, with a place for a fault at each moment of a micro-batch
"""
