"""Kafka and NATS in the same run as Seriatim, with as many copies and the same flushes: `make bench-peers`."""
