"""Rules of the core about reading ranges: what is read, from which member, and where the end is."""

from .rows import mutations

MUTATIONS = mutations("""
[RANGE ranges]
range-above-commit [RANGE I2 I5 I6 I9 I10 I12]: a range read ends below the commit
@ core.consumers.ranges.surveys.readable_below
- return log.readable_below
+ return log.tail
range-end-by-any: only the master of the open segment says where the partition ends
@ core.consumers.ranges.surveys.answer
- PartitionSurveyed(event.request, chain, readable, is_master, None)
+ PartitionSurveyed(event.request, chain, readable or 0, True, None)
range-nothing-is-end: a range does not end where a member lacks messages
@ core.consumers.ranges.range_reads._answer
  partition.range_waits = drop(partition.range_waits, wait.event.request)
+ if brokers and error is None:
+     is_done, brokers = True, ()
range-repeats [I9]: a range read skips a batch that is earlier in the order already
@ core.consumers.ranges.range_reads._events
- if before.covers(header) or is_passed:
+ if is_passed:
refusal-reads-first [ranges-left-behind]: a range is refused only by a record that was read since the reader asked
@ core.consumers.ranges.range_reads._refuse
- if not (event.staged or wait.record is RecordRead.DONE):
+ if False:
refusal-reads-anew [ranges-left-behind]: a range is not refused by a record only because it is as new as the one that
  the reader has seen
@ core.consumers.ranges.range_reads._refuse
- if not (event.staged or wait.record is RecordRead.DONE):
+ if not (event.staged or wait.record is RecordRead.DONE or 0 < event.epoch <= chain.epoch):
range-parts [RANGE I2 I3]: ranges are read from in-sync copies
@ core.consumers.ranges.surveys.readable_below
- return log.record.sealed_len if log.is_in_sync else None
+ return log.tail
@ core.consumers.ranges.range_reads._advance
- wait = _over_what_was_dropped(chain, wait)
+ segment, log = chain.segment(wait.place.segment_no), partition.logs.get(wait.place.segment_no)
+ is_sealed = segment is not None and segment.state is SegmentState.SEALED
+ if is_sealed and log is not None and wait.place.index == log.tail > 0 and wait.place < wait.event.until:
+     end = RangeSegmentEnd(segment.no, log.tail, log.tail_checksum)
+     wait = wait._replace(place=Place(segment.no + 1, 0), passed=(*wait.passed, end))
+ wait = _over_what_was_dropped(chain, wait)
""")
"""By name."""
