"""The links of a local cluster. All connections between its processes go through a proxy, which cuts and delays them.

The proxy is a process of its own, so that a busy cluster does not slow it. It needs no gRPC.

    network        replaces the proxy if a cluster is not on loopback addresses
    proxy_process  the runner's handle on the proxy's process
    proxy_main     the proxy's process
    proxy          a listening port for each directed pair
    forwarding     one connection through the proxy, whose directions can be held and delayed
    delays         the delay of one direction of a link
"""
