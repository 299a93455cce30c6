"""The parts of a real machine that `interfaces` requires: disk, coordinator, clock, and readers of bodies.

The connections between brokers are in `rpc`. `testing` has all of these parts for a simulated machine.

    rocks          storage in RocksDB
    identity_file  identity of a data directory: the member to which it belongs, and its member run
    arrow_bodies   bodies of batches, read with pyarrow
    crc            the checksum CRC-32C
    system_clock   clocks of the machine

    etcd          the coordinator: etcd, or the embedded one
    etcd_channel  connections to its endpoints, with certificates
    etcd_codec    requests, answers and errors as etcd's messages
    etcd_renewal  renewals of a lease on one stream
    etcd_watch    a watch that continues at its place after a break
"""
