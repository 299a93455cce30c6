"""`make demo-spark`: the flights of `make demo` through Spark, and back into a topic."""
