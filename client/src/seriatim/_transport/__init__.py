"""All code that uses gRPC: channels, streams and unary calls. No gRPC exception leaves this package.

The pure cores decide what goes over the streams, and when. This package has connections, deadlines and frames.

    channels      connections to brokers
    certificates  the client's certificates, and the reasons of failed connections
    unary         questions: to one broker after another, until one answers
    silence       notices that no broker answers
    append        streams of batches to masters
    consume       streams of deliveries from servers
    ranges        streams of range reads
"""
