"""Gets Kafka and Spark's source of Kafka. Only `KAFKA=1 make bench-spark` needs them. `fetch.py` does the work."""
