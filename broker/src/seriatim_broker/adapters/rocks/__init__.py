"""The storage of a broker: a log of extents in RocksDB, through rocksdict.

`storage` tells how the parts fit together. `engine` tells which calls of rocksdict keep the interpreter lock: most of
the design follows from that.
"""

from .settings import RocksSettings
from .storage import RocksStorage

__all__ = ["RocksSettings", "RocksStorage"]
