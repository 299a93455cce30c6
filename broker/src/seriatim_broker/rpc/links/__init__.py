"""Links between two brokers over TCP or TLS, and the sockets on which brokers listen.

link               makes and accepts links; each has two connections (lanes): control and replication
lane               one such connection
peer_hello         the hello that begins a lane: who dials or answers, of which cluster, for which link
peer_names         the certificate of a peer must name the host of the broker that it says it is
peer_frames        messages that were queued in one turn of the event loop go out together
codec              messages between brokers as bytes
listening_sockets  listening sockets of links and of streams without gRPC
"""
