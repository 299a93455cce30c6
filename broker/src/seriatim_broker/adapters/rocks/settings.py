"""Settings of the RocksDB storage, each with its unit, its default and the reason for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ...core.values.config import ADOPTED_BYTES_MIN

_MIB: Final = 1 << 20

_DISK_BYTES_MIN: Final = 1 << 30  # also for file systems that do not tell

EXTENTS_MIN: Final = 16
EXTENTS_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class RocksSettings:
    """How much memory and disk the storage may use, and when it acts.

    Attributes:
        extents: How many extents there are, in use and spare. They are made at the first start, in about 1 ms each on
            a good disk, and take 0.1 MB of memory each. None: as `for_disk` says.
        extent_size_bytes_max: An extent that has taken this much is followed by another, if one is spare; else it goes
            on. (Not larger without need: a read looks into each of its files, one for each memtable that it took.)
        extent_age_s_max: So is one that is this old, while at least half of all extents are spare, so that retention
            by time finds whole extents to empty.
        extent_live_percent_min: An extent with less of it still in use is copied forward and dropped.
        extent_copy_size_bytes_min: Extents smaller than this are not worth copying.
        apart_size_bytes_min: A staged body of at least this size stands apart, so that other logs can adopt it.
        memtables_size_bytes_max: Over all column families; at this size RocksDB begins to write the oldest out.
        extent_memtable_size_bytes: One memtable of an extent; as large is a file of it.
        meta_memtable_size_bytes: One memtable of the small column families.
        memtables_count_max: For each column family; when all wait for the disk, writes are refused for the moment.
        level0_files_compaction: Files of a small column family at which it is compacted; refusals begin at twice as
            many. Extents are never compacted.
        wal_size_bytes_max: Write-ahead logs beyond this are released by writing out the memtables that need them.
        block_cache_size_bytes: Blocks, indexes and filters kept in memory.
        open_files_max: Table files kept open.
        head_cache_size_bytes_max: Newest batches kept in memory for readers at the head, over all partitions.
        queued_size_bytes_max: Submitted and not yet durable; beyond it the storage says that it is saturated.
        group_size_bytes_max: Written and flushed together: bounds how long one write holds the interpreter lock
            (2 ms a MiB; 20 ms where the machine has to find the memory first).
        retry_ms: How soon a write that the engine refused for the moment is tried again.
        read_deadline_ms: A read from the disk that takes longer fails.
        scans_max: Places of sequential readers that are kept between two reads. Each pins the files and memtables that
            its iterator began with, and some 0.3 MB of what RocksDB reads ahead.
        scan_idle_ms_max: A place that was not taken up for so long is let go.
        scan_age_ms_max: An iterator that is this old is opened anew by the next read, which takes half a millisecond:
            so it does not pin files for long that are gone since.
        read_ahead_bytes: Read ahead of a sequential reader.
        read_ahead_bytes_max: The same over all readers of the broker; beyond it they read without.
        reserve_percent: Of the disk, kept free of new appends.
        reserve_bytes_min: The least reserve.
        reserve_percent_max: The reserve is at most so much of the disk, whatever the least reserve is: for small disks.
        disk_check_ms: How long a look at the free space is believed.
    """

    extents: int | None = None
    extent_size_bytes_max: int = 4096 * _MIB
    extent_age_s_max: float = 3600.0
    extent_live_percent_min: int = 40
    extent_copy_size_bytes_min: int = 64 * _MIB
    apart_size_bytes_min: int = ADOPTED_BYTES_MIN
    memtables_size_bytes_max: int = 96 * _MIB
    extent_memtable_size_bytes: int = 32 * _MIB
    meta_memtable_size_bytes: int = 8 * _MIB
    memtables_count_max: int = 4
    level0_files_compaction: int = 4
    wal_size_bytes_max: int = 128 * _MIB
    block_cache_size_bytes: int = 32 * _MIB
    open_files_max: int = 2000
    head_cache_size_bytes_max: int = 64 * _MIB
    queued_size_bytes_max: int = 64 * _MIB
    group_size_bytes_max: int = _MIB // 2
    retry_ms: int = 5
    read_deadline_ms: int = 10_000
    scans_max: int = 64
    scan_idle_ms_max: int = 1000
    scan_age_ms_max: int = 1000
    read_ahead_bytes: int = 2 * _MIB
    read_ahead_bytes_max: int = 64 * _MIB
    reserve_percent: int = 5
    reserve_bytes_min: int = 2048 * _MIB
    reserve_percent_max: int = 20
    disk_check_ms: int = 1000

    def __post_init__(self) -> None:
        assert 0 < self.extent_live_percent_min < 100, self.extent_live_percent_min
        assert self.extent_size_bytes_max > 0, self.extent_size_bytes_max
        assert self.extent_age_s_max > 0, self.extent_age_s_max
        assert self.memtables_count_max >= 2, self.memtables_count_max
        assert self.level0_files_compaction >= 1, self.level0_files_compaction
        assert 0 < self.group_size_bytes_max <= self.queued_size_bytes_max, self.group_size_bytes_max
        assert self.scan_idle_ms_max > 0, self.scan_idle_ms_max
        assert self.read_ahead_bytes > 0, self.read_ahead_bytes
        assert 0 <= self.reserve_percent < 100, self.reserve_percent
        assert 0 < self.reserve_percent_max <= 100, self.reserve_percent_max
        assert self.extents is None or self.extents >= 2, self.extents

    def for_disk(self, size_bytes: int) -> RocksSettings:
        """The same for a disk of this size: extents for all of it and a quarter more, unless their number is set.

        Where the limits of their number do not fit `extent_size_bytes_max`, extents are smaller or larger than that.
        """
        if self.extents is not None:
            return self
        wanted_bytes = max(size_bytes, _DISK_BYTES_MIN) * 5 // 4
        extents = min(max(-(-wanted_bytes // self.extent_size_bytes_max), EXTENTS_MIN), EXTENTS_MAX)
        return replace(self, extents=extents, extent_size_bytes_max=wanted_bytes // extents)
