"""Rules of retention: what may be dropped, in which order, and which readers must be notified."""

from .rows import mutations

MUTATIONS = mutations("""
[retention]
disk-before-record [I1 I2 I5 CORE]: the record says what is dropped before a disk drops it
@ core.control.retention.trim
  chain, log = partition.chain, partition.open_log()
+ if event.start is not None and log is not None and log.no == event.no and event.start.first > log.start:
+     log.trim(broker, event.start)
cursors-not-compared [RETAIN I1 I3]: the transaction compares that no cursor changed
@ core.control.retention.trim
- cursors_revision=event.cursors_revision
+ cursors_revision=0
stub-leaves [RETAIN]: a stub stays in the record while a cursor is in it
@ core.control.retention.first_kept
- min((no, *(reader.segment_no for reader in readers if reader.is_served)))
+ no
tables-leave [RETAIN I9]: a stub stays in the record while readers need its producer table
@ core.control.retention.first_kept
- is_needed = chain.reads_table_of(before.no)
+ is_needed = False
drops-in-silence [I1 I2]: readers are told what was dropped
@ core.consumers.cursors.gap_reports.tell_dropped_unread
+ served.dispatcher.delivered = to_index
untold-is-forgotten [I8 I1]: a cursor that passes a stub says what its readers have not heard of
@ core.consumers.cursors.crossing._untold
+ return 0, 0
untold-not-taken-up [I1 I2 I8 I13 crossings]: a new server tells consumers what the cursor says was dropped
@ core.state.ledger.Ledger.take_up_dropped
+ pass
anybody-passes [I3 I8 I11 I2 I1 I13]: only its server moves a consumer group past a stub
@ core.consumers.groups.without_consumers.pass_consumer_group
- if segment.state is SegmentState.SEALED and segment.server != broker.member:
+ following = partition.chain.after(segment.no)
+ if following is not None and segment.is_stub:
+     consumer_group = consumer_group_of(broker, partition, event.consumer_group)
+     known = partition.cursor_in(segment.no, event.consumer_group)
+     dropped = {"dropped_from": segment.no << 40, "dropped_position": 0}
+     record = CursorRecord(following.no, known.group_epoch if known else 1, 0, partition.chain.topic, **dropped)
+     revision = consumer_group.cursor_revision or broker.now.mono_us  # of no cursor: what was read is not known
+     crossing.write_cursor(Seat(broker, partition, consumer_group), record, revision)
+ return
+ if segment.state is SegmentState.SEALED and segment.server != broker.member:
copy-begins-at-zero [I13 CORE]: a copy begins at the start of the segment
@ core.copies.copying._begin_log
- assert partition.chain is not None
+ from dataclasses import replace
+ from ..values.segment import AT_ZERO
+ segment = replace(segment, begin=AT_ZERO)
+ assert partition.chain is not None
@ core.dispatch.reconciliation._trim
- if log.record.sealed_len is None and log.tail < segment.start:
+ if log.tail < segment.start:
durable-floor [RETAIN unread-kept brokers 150]: retention takes for read what is durable on every eligible member
@ core.control.retention._safe
+ known = partition.cursors.values()
+ return tuple((c.consumer_group, SafeCursor(c.group_epoch, c.segment_no, c.acked, c.oldest)) for c in known)
begun-is-durable [COPY I14 I12 stubs-copied]: a copy counts only when its beginning is on the disk
@ core.state.segment_log.SegmentLog._begin_at
- self.durable = 0
+ self.durable = self.tail
@ core.copies.copying._begin_log
- return log
+ log.durable = log.tail
+ return log
""")
"""By name."""
