"""The embedded coordinator: what stands in for etcd where there is none.

It serves the part of the etcd v3 gRPC API that the broker uses, from RocksDB in a directory, so that the same
adapter talks to both and `etcdctl` can read it. It knows nothing of the broker and imports nothing of it.

    server    start and stop             watch     streams of events
    service   gRPC to store              lease     time left, and keys
    store     durability, group commit   mvcc      versions of keys
    requests  Range, Put, Delete, Txn    disk      RocksDB
"""

from seriatim_broker.embedded.server import EmbeddedCoordinator, serve

__all__ = ["EmbeddedCoordinator", "serve"]
