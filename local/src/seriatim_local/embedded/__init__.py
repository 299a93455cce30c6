"""The embedded coordinator: it takes the place of etcd on a machine without etcd.

It serves the part of etcd's v3 gRPC API that the broker uses, from RocksDB in a directory. So the same adapter uses
both, and `etcdctl` can read it. It imports nothing from the broker except `broken_assertions`.

    server    start and stop             watch     streams of events
    service   gRPC to store              lease     time left, and keys
    store     durability, group commit   mvcc      versions of keys
    requests  Range, Put, Delete, Txn    disk      RocksDB
    refusal   what it does not carry out
"""

from seriatim_local.embedded.server import EmbeddedCoordinator, serve

__all__ = ["EmbeddedCoordinator", "serve"]
