"""Settings of the RocksDB storage, each with its unit, its default and the reason for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ...core.values.config import ADOPTED_BYTES_MIN

_MIB: Final = 1 << 20

_DISK_BYTES_MIN: Final = 1 << 30  # also if a file system does not report its size

EXTENTS_MIN: Final = 16
EXTENTS_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class RocksSettings:
    """How much memory and disk the storage may use, and when it acts.

    Attributes:
        extents: The number of extents, in use and spare. The first start makes them, in about 1 ms each on a good disk.
            Each takes 0.1 MB of memory. None: `for_disk` decides.
        extent_size_bytes_max: When an extent has taken this many bytes, the next one begins, if one is spare. If none
            is spare, the extent takes more. Do not raise this without need: a read looks into each file of an extent,
            and there is a file for each memtable that the extent took.
        extent_age_s_max: When an extent is this many seconds old, the next one begins too, if at least half of all
            extents are spare. So retention by time finds whole extents to empty.
        extent_live_percent_min: An extent of which less than this is in use is copied forward and emptied.
        extent_copy_size_bytes_min: A smaller extent is not copied, because it is not worth it.
        apart_size_bytes_min: A staged body of at least this size is stored apart, so that other logs can adopt it.
        memtables_size_bytes_max: When the memtables of all column families have this size, RocksDB begins to write the
            oldest out.
        extent_memtable_size_bytes: The size of one memtable of an extent, and so of one of its files.
        meta_memtable_size_bytes: The size of one memtable of the small column families.
        memtables_count_max: Memtables of each column family. When all of them wait for the disk, RocksDB refuses writes
            for the moment.
        level0_files_compaction: When a small column family has this many files, it is compacted. With twice as many,
            RocksDB begins to refuse writes. Extents are never compacted.
        wal_size_bytes_max: When the write-ahead logs are larger than this, RocksDB writes out the memtables that need
            the oldest.
        block_cache_size_bytes: Memory for blocks, indexes and filters.
        open_files_max: Table files that RocksDB keeps open.
        head_cache_size_bytes_max: Memory for the newest batches of all partitions, from which consumers read.
        queued_size_bytes_max: When more submitted bytes than this are not durable yet, the storage says that it is
            saturated.
        group_size_bytes_max: The size of a group, which is written and flushed together. It limits how long one write
            keeps the interpreter lock: 2 ms for each MiB, or 20 ms if the machine must find the memory first.
        flush_late_ms: Batches that no producer waits for on a disk are flushed this many ms after the first of them was
            written, or with the next write that does not wait.
        late_size_bytes_max: They are flushed sooner if they have this many bytes.
        retry_ms: The time after which a write is tried again that the engine refused for the moment.
        read_deadline_ms: A read from the disk that takes longer fails.
        scans_max: Places of sequential readers that are kept between two reads. Each keeps alive the files and
            memtables with which its iterator began, and has about 0.3 MB that RocksDB reads ahead.
        scan_idle_ms_max: A place that no read takes for this time is dropped.
        scan_age_ms_max: If an iterator is this old, the next read opens a new one, which takes half a millisecond. So
            an iterator does not keep old files alive for longer.
        read_ahead_bytes: Bytes to read ahead of one sequential reader.
        read_ahead_bytes_max: Bytes to read ahead of all readers of the broker. Nothing is read ahead beyond it.
        reserve_percent: The part of the disk that is kept free of new appends.
        reserve_bytes_min: The least reserve.
        reserve_percent_max: The least reserve is at most this part of the disk. This matters for small disks.
        disk_check_ms: How old a measurement of the free space may be.
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
    flush_late_ms: int = 10
    late_size_bytes_max: int = _MIB
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
        assert self.flush_late_ms > 0, self.flush_late_ms
        assert 0 < self.late_size_bytes_max <= self.queued_size_bytes_max, self.late_size_bytes_max
        assert self.scan_idle_ms_max > 0, self.scan_idle_ms_max
        assert self.read_ahead_bytes > 0, self.read_ahead_bytes
        assert 0 <= self.reserve_percent < 100, self.reserve_percent
        assert 0 < self.reserve_percent_max <= 100, self.reserve_percent_max
        assert self.extents is None or self.extents >= 2, self.extents

    def for_disk(self, size_bytes: int) -> RocksSettings:
        """These settings for a disk of this size: with extents for one and a quarter times the disk.

        If `extents` is set, nothing changes. There are at least 16 and at most 512 extents. If this does not fit
        `extent_size_bytes_max`, the extents are smaller or larger than that.
        """
        if self.extents is not None:
            return self
        wanted_bytes = max(size_bytes, _DISK_BYTES_MIN) * 5 // 4
        extents = min(max(-(-wanted_bytes // self.extent_size_bytes_max), EXTENTS_MIN), EXTENTS_MAX)
        return replace(self, extents=extents, extent_size_bytes_max=wanted_bytes // extents)
