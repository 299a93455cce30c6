"""Rules of the storage adapter, removed one at a time: worlds whose disks it writes must find each of these mutants.

A broker believes the adapter about what is durable, and about what a start finds. Rule `DISK`: a start finds all
that was durable, and nothing else.
"""

from .rows import mutations

MUTATIONS = mutations("""
[DISK I1 I2 I5 I6 I9 I10 I12 TABLE COPY CORE GAP disks storage]
storage-reports-early: a write is reported only once it is flushed
@ adapters.rocks.writer.Writer._flush
  assert loop is not None
+ if ticket % 2 == 0:
+     loop.call_soon_threadsafe(self._flushed, ticket)
+     return
storage-flushes-again [failing-disks]: a flush that failed ends the process
@ adapters.rocks.writer.Writer._flush
- floor.database.flush_wal()
+ with contextlib.suppress(FlushFailedError):
+     floor.database.flush_wal()
+ floor.database.flush_wal()
storage-window-later: a batch and its producer table are one write
@ adapters.rocks.writer.WriteGroup.set_window
- self.windows[key] = (family, window)
+ from seriatim_broker.core.values import producers
+ older = producers.entries_of(window)[:-1] if window is not None else ()
+ self.windows.setdefault(key, (family, producers.pack_window(older) if older else window))
storage-cut-in-memory: a cut is durable
@ adapters.rocks.storage.RocksStorage._cut
  last = log.runs[log.run_at(length)] if log.runs else None
+ group = WriteGroup()
storage-damage-is-end [+ I13 damage]: damage is not the end of the log
@ adapters.rocks.scan.Scan.read
- if not found:
-     raise
+ pass
""")
"""By name."""
