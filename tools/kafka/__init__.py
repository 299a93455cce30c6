"""Gets Kafka and Spark's source of it, which only `KAFKA=1 make bench-spark` needs. `fetch.py` does it."""
