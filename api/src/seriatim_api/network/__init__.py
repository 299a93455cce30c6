"""How all programs of Seriatim connect to each other: names, certificates, gRPC's options, and time on the way.

Only the standard library is needed here. Each program opens its own channels, with what this package gives.

    host_lookup   looks up the addresses of hosts, in threads of its own
    tls           certificates in files, read again when they change
    tls_contexts  TLS of connections without gRPC
    grpc_options  the options of all gRPC channels and servers
    hedging       asks another peer too if the first one is silent
    round_trips   how long a question and its answer are on their way
"""
