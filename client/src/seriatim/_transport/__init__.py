"""Everything that touches gRPC: channels, streams and unary calls. No gRPC exception leaves this package.

What goes over the streams, and when, is decided by the pure cores; here are connections, deadlines and frames.

    channels   connections to brokers
    unary      questions: to one broker after another, until one answers
    silence    noticing that no broker answers
    append     streams of batches to masters
    consume    streams of deliveries from servers
"""
