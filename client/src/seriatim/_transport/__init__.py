"""All connections to brokers: streams over TCP or gRPC, and questions over gRPC. No gRPC exception leaves this package.

The pure cores decide what goes over the streams, and when. This package has connections, deadlines and frames.

    channels       connections to brokers
    certificates   the client's certificates
    reasons        why connections failed, for humans
    unary          questions: to one broker after another, until one answers
    cancellations  cancellations of delayed messages: those of a segment together, at the broker that answered last
    ownership      the call of a program that wants a name that one program at a time has
    silence        notices that no broker answers
    append         streams of batches to masters
    consume        streams of deliveries from servers
    ranges         streams of range reads
    carriages      a stream over TCP where possible, otherwise over gRPC
    tcp_carriage   streams over TCP
    grpc_carriage  streams over gRPC
    carriage       what links and carriages need of each other
    stream_ports   where brokers take streams over TCP
    warm_streams   streams to brokers that may take over next
"""
