"""Rules about consumer groups that administrators rewind, skip, pause and resume, removed one at a time."""

from .rows import mutations

MUTATIONS = mutations("""
[group-operations]
operation-compares-chain [VOID PAUSE I11 late-operations]: an operation on a consumer group compares the chain record,
  which names the server
@ core.consumers.cursors.crossing.write_cursor
- _transaction(seat, record, revision, chain_revision, is_new=is_new)
+ _transaction(seat, record, revision, 0, is_new=is_new)
operation-raises-epoch [I11]: a rewind or skip begins a new group epoch
@ core.consumers.groups.operations.after
- moved = _to_place(cursor, chain, place)
+ moved = replace(_to_place(cursor, chain, place), group_epoch=cursor.group_epoch)
old-epochs-void [I2 I11 I8]: what was acknowledged in another group epoch does not count
@ core.consumers.cursors.control_records.known_in_epoch
- return known if known is not None and known.group_epoch == group_epoch else None
+ return known
epochs-apart [I2 I11 I8 I3]: control records of two group epochs are not merged
@ core.consumers.cursors.control_records._keep
- known = partition.cursors.get(cursor.consumer_group)
+ known = partition.cursor_in(cursor.segment_no, cursor.consumer_group)
+ if known is not None:
+     acked, reserved = max(known.acked, cursor.acked), max(known.reserved, cursor.reserved)
+     cursor = replace(cursor, acked=acked, reserved=reserved)
+ known = partition.cursors.get(cursor.consumer_group)
unknown-holds [VOID I11 late-operations]: a consumer group gets nothing until its move is known to be done
@ core.consumers.groups.operations.is_unsettled
  operation.is_begun = False
+ consumer_group.operations.pop(0)
+ return False
stops-first [VOID I11 CORE]: a consumer group is stopped before it is moved
@ core.consumers.groups.operations._stop
+ pass
operation-once [ONCE]: a repeated request is carried out once
@ core.consumers.groups.operations.was_done
+ return False
newest-cursor [VOID PAUSE I11 I13]: a cursor that was read earlier and arrives late is ignored
@ core.consumers.groups.serving._came_late
+ return False
pause-stays [PAUSE I11]: a paused consumer group stays paused when it crosses or is moved
@ core.values.events.CursorRecord.moved_to
- moved = replace(self, segment_no=segment_no,
+ moved = replace(self, paused=False, segment_no=segment_no,
""")
"""By name."""
