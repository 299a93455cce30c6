"""The parts of consumers: the way of messages from a stream to the application, and of acknowledgements back.

base           what consumers of all modes share
subscription   a partition: its core (`seriatim._core.consumer`), and the core's effects
streams        the streams to the servers, which partitions share
servers        asks brokers for the server of a partition
events         turns a broker's events about a subscription into events of the core
inbox          batches that wait for the application; it makes messages and tables of them
"""
