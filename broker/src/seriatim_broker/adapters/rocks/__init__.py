"""The storage of a broker: a log of extents in RocksDB, through rocksdict.

`storage` ties the parts together. `engine` says which calls of rocksdict keep the interpreter lock: most of the
design follows from that.

    storage       the interface `interfaces.storage`, made of the modules below
    settings      sizes, times and limits of the storage
    codec         values on disk, as bytes
    keys          keys of rows, sorted by partition, segment and index

    floor         the boundary to the machine; the simulator has its own implementation
    engine        RocksDB, through rocksdict
    options       RocksDB's options, as the text of an options file
    log_files     files of the write-ahead log, and the order in which they reach the disk
    flusher       a thread that flushes this log
    watermark     a file that notes up to where the log is durable
    room          whether the disk has room for new messages

    writer        groups of writes, one write and one flush at a time
    extents       where the batches of each segment are
    lending       staged bodies that another log adopts
    delayed       rows of delayed batches: what is due next, and what has an index
    copies        tail copies of this disk
    recovery      what a start finds on the disk
    housekeeping  emptied extents, and batches that are copied out of sparse ones

    reader        reads from memory, disk and tail copies
    head_cache    newest batches of all partitions, in memory
    scan          batch after batch from the engine, in worker threads
    scans         open scans that wait for the next read of a sequential reader
    finding       binary search for a batch by append time, index or bytes
    checks        verification of each batch that comes from the disk
"""

from .settings import RocksSettings
from .storage import RocksStorage

__all__ = ["RocksSettings", "RocksStorage"]
