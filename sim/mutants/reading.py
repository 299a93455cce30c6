"""Rules of the core about reading: what is served, by which member, to which consumer group, and which copies exist."""

from .rows import mutations

MUTATIONS = mutations("""
above-commit [I6 I12]: consumers are served only below the commit
@ core.state.segment_log.SegmentLog.readable_below
- return self.commit
+ return self.tail
readers-skip [I9 groups-die]: readers skip a batch that is earlier in the order already
@ core.copies.producer_tables.want_before
+ return ProducerTable()
tables-go-early [I9 TABLE groups-die]: a segment before an incomplete one keeps its table
@ core.copies.producer_tables.is_kept
+ return not chain.following(no, 1)
all-acknowledged [I3 I8 CORE]: a consumer group crosses only when it has acknowledged everything
@ core.consumers.cursors.crossing.cross_if_done
  ledger, dispatcher, log = served.ledger, served.dispatcher, served.log
+ ledger.safe_acked = max(ledger.safe_acked, dispatcher.delivered)
ack-copies [I9 I11 restarts]: an ack counts only once every eligible member has it
@ core.consumers.cursors.control_records.send
- others = [member for member in dict.fromkeys((*segment.eligible, *joining)) if member != broker.member]
+ others = []
reservations [I9 restarts]: a range is reserved durably before it is delivered
@ core.consumers.exclusive.delivery.deliver_held_back
  consumer_group, dispatcher, ledger = served.group, served.dispatcher, served.ledger
+ ledger.safe_reserved = 1 << 40
serve-lease [SERVER two-servers]: a server delivers only under its lease
@ core.peers.right.silent_members
+ return []
changes-of-any-record [I14 LEAVE SERVER LOSS islands]: changes are applied only to the chain record that they continue
@ core.dispatch.record.on_changes
- if known is not None and known.epoch >= message.since:
+ if known is not None:
- if segments.digest == message.digest:
+ if True:
changes-end-a-right [SERVER told-first]: a server that cannot apply changes of the chain record gives up its right
@ core.peers.right.give_up
+ pass
copy-durable [COPY lost-disks]: a copy counts only once it is on the disk
@ core.copies.copying.on_copy_answer
  broker.wake(copying.wake_us, TimerKind.COPY, partition.id, message.segment_no)
+ log.durable, copying.token = log.tail, 0
+ _go_on(broker, partition, message.segment_no)
hang-unnoticed [I13 hung-disks]: a member whose disk hangs counts as silent
@ core.peers.disks.is_hung
+ return False
@ core.peers.disks.on_answer
+ pass
lane-unwatched [I13 stalled-lanes]: a link with a stalled lane is ended
@ core.peers.lanes.look
+ return False
full-slave [FULL full-disks]: if the slave's disk is full, the master refuses batches or moves the segment
@ core.peers.disks.full_for_us
- since_us = link.disk_full_since_us
+ pass
full-stays [I13 full-disks]: an open segment leaves a full disk
@ core.control.drain.leave_full_disk
+ pass
incarnation [I14 LOSS lost-disks]: an emptied disk is another member
@ sim.cores.brokers.Broker.replace_disk
+ scene = self._cluster.scene
+ scene.health.lost_a_disk()
+ scene.judge.seen.graveyard.append((MemberId(self.name, "wiped"), self.disk.durable.twin()))
+ self.disk.wipe()
""")
"""By name."""
