"""What stands behind `Consumer`: from a stream to the application, and back with the acknowledgements.

subscription   a partition: its core (`seriatim._core.consumer`), and what the core's effects mean
streams        the streams to the servers, which partitions share
servers        asking brokers who serves a partition
events         what a broker says of a subscription, as the core hears it
inbox          batches that came and wait for the application; messages and tables made of them
"""
