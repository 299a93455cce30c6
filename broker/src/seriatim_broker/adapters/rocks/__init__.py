"""RocksDB as a log of extents, through rocksdict: the storage of a broker.

See `storage` for how the parts hang together, and `engine` for what rocksdict does with the interpreter lock, from
which most of the design follows.
"""

from .settings import RocksSettings
from .storage import RocksStorage

__all__ = ["RocksSettings", "RocksStorage"]
