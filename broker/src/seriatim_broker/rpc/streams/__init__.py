"""Streams of clients, over TCP or over gRPC.

append                 batches come in, replies go out
consume                joins, acknowledgements and credits come in, deliveries go out
read_range             asks the core for one step of a range after another
over_tcp, over_grpc    what carries a stream: a connection, or a call
served                 what both carriages need of a stream, and the maximum number of streams
"""
