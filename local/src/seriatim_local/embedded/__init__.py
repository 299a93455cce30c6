"""The embedded coordinator: it takes the place of etcd on a machine without etcd.

It serves the part of etcd's v3 gRPC API that the broker uses, from RocksDB in a directory. So the same adapter uses
both, and `etcdctl` can read it. It imports nothing from the broker except `broken_assertions`.

    server    start and stop
    service   gRPC calls to the store
    requests  Range, Put, DeleteRange and Txn
    refusal   answers to requests that it does not carry out
    store     durability: one flush for many requests
    mvcc      versions of keys
    lease     time that each lease has left, and its keys
    watch     streams of events
    disk      the database in RocksDB
"""

from seriatim_local.embedded.server import EmbeddedCoordinator, serve

__all__ = ["EmbeddedCoordinator", "serve"]
