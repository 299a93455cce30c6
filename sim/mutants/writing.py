"""Rules of the core about writing: fences, commits, switches, settlements, the order of a producer.

Rules that overlap: no checker notices if the fence at start alone is removed, or the voiding alone. A member run takes
batches only in a segment that it opened itself ("active" is not kept on the disk), and opens only what it prepared
itself. `start-fence` removes the rule backing both: a member run continues with what an earlier one opened. `voided`
removes voiding with both checks of the member run.
"""

from .rows import mutations

MUTATIONS = mutations("""
attempt-id [LOSS switchers-race]: a member opens only what was prepared under the attempt id that the chain record names
@ core.switching.preparing.on_prepare
  broker.out.write(PutPreparation(partition.id, preparation))
+ for no, attempt in [each for each in partition.preparations if each[0] == message.segment_no and each != key]:
+     members = partition.preparations[no, attempt].members
+     overwritten = replace(preparation, switch_attempt=attempt, members=members)
+     partition.preparations = put(partition.preparations, (no, attempt), overwritten)
+     broker.out.write(PutPreparation(partition.id, overwritten))
start-fence [LOSS restarts]: a member run never continues a segment that an earlier run opened
@ core.state.segment_log.SegmentLog.recovered
  log.is_from_disk = True
+ log.active = not log.record.fenced and log.record.sealed_len is None
@ core.switching.fencing.fence_at_start
+ from ..state.segment_log import Follower
+ for log in partition.logs.values():
+     if log.active and log.record.members[0] == broker.member:
+         log.unbroken = True
+         log.followers = tuple(Follower(member) for member in log.record.members[1:])
tail-first [LOSS switchers-race]: fencing and reading the answer are one step
@ core.switching.fencing.fence_and_answer
+ return fence_answer(broker, log, message)
@ core.switching.fencing.on_fenced_too_long
- if partition.fenced_at_us is None:
+ fence_unsealed(broker, partition)
+ if partition.fenced_at_us is None:
fence-freezes-commit [LOSS switchers-race]: a fenced member commits nothing more
@ core.state.segment_log.SegmentLog.fence
- self.active = False
- self.held = ()
+ pass
@ core.state.segment_log.SegmentLog.advance_commit
- if self.record.fenced or commit <= self.commit:
+ if commit <= self.commit:
@ core.writing.appending.release
- if log.record.fenced:
+ if False:
@ core.writing.appending.on_append
- if log is None or not log.active or not log.unbroken or
+ if log is None or not log.active or log.record.fenced or not log.unbroken or
unbroken [LOSS restarts]: only an unbroken master answers with its commit
@ core.switching.fencing.fence_answer
- here = log.commit if log.unbroken else log.tail
+ is_master = log.record.members[0] == broker.member
+ here = log.commit if is_master else log.tail
- unbroken=log.unbroken,
+ unbroken=is_master,
every-member [I12]: the commit waits for every member
@ core.writing.replication._move_commit
- flushed = min([log.durable, *(follower.durable for follower in log.followers)])
+ flushed = log.durable
- min([log.tail, *(follower.received for follower in log.followers)])
+ log.tail
@ core.writing.appending.release
- durable = min((follower.durable for follower in log.followers), default=log.durable)
+ durable = log.durable
slave-flushes [I12]: a slave acknowledges only what it has flushed
@ core.writing.following._take
- broker.out.when_durable(Send(master.broker, ack))
+ broker.send(master, ack)
tail-copy [I12 restarts]: the uncertain tail is copied before the transaction
@ core.switching.lengths.uncertain_tail
+ return None
tail-from-commit [I12 suspects]: the uncertain tail begins at what every member is known to have flushed
@ core.state.segment_log.SegmentLog.advance_commit
  self.commit = commit
+ self.advance_flushed(commit)
table [TABLE]: the producer table travels with the switch
@ core.switching.opening.choose_broker_groups
- assert switch.chain is not None
+ from ..values.producers import NO_TABLE
+ assert switch.chain is not None
+ switch.sealing.table = NO_TABLE
known-commit [LOSS restarts]: the length is an answered tail, not the commit that the member knew
@ core.switching.lengths.seal
- length = answer.length
+ is_known = not answer.unbroken and answer.tail
+ length = answer.commit if is_known else answer.length
- tail = uncertain_tail(switch)
+ tail = uncertain_tail(switch) if not is_known else None
- checksum=answer.checksum,
+ checksum=answer.tail[0].header.previous_checksum if is_known else answer.checksum,
certificate [I7 RT groups-die]: a segment is opened over only with the certificate of the master's run
@ core.switching.sealing.on_certificate
- if exists and run.member
+ if run.member
@ core.state.partition.Partition.write_chain
- self.revision, certificate, cursors_revision
+ self.revision, None, cursors_revision
unknown-outcome [I7 LOSS switchers-race]: after a time-out a switcher reads the chain first
@ core.dispatch.record.on_chain_written
- outcome, revision = event.outcome, event.revision
+ if event.outcome is WriteOutcome.UNKNOWN and partition.writes[event.serial][0] is WriteOwner.SWITCH:
+     event = replace(event, outcome=WriteOutcome.DONE)
+ outcome, revision = event.outcome, event.revision
failed-early [I10 switchers-race]: a send attempt is answered as failed only once the chain record says so
@ core.switching.fencing.fence_and_answer
- return fence_answer(broker, log, message)
+ from dataclasses import replace
+ from ..writing import appending
+ answer, known = fence_answer(broker, log, message), log.record
+ log.record = replace(known, sealed_len=log.commit)
+ appending.settle_waiting(broker, log, partition.route())
+ log.record = known
+ return answer
mark-inherited [TABLE groups-die]: an incomplete table stays marked
@ core.switching.opening.choose_broker_groups
  assert switch.chain is not None
+ switch.sealing.table_complete = switch.sealing.table_complete or switch.sealing.source is not None
settle-copy [I12 groups-die]: the member that settles copies its tail before the transaction
@ core.copies.settle._go_on
  tail = _tail(partition, no)
+ settlement.stored = settlement.stored or {broker.member: None}
settle-tail [I6 groups-die]: a segment is settled at a fenced disk's tail, not at the commit that it knew
@ core.copies.settle.length_of
- return log.commit if log.unbroken else log.tail
+ return log.commit
answered-anew [I13 suspects-restart]: suspects send each other their tails on each link
@ core.copies.settle.on_link_up
- settlement.answered.pop(member, None)
+ pass
own-commit [LOSS restarts]: a member truncates only to the sealed length in the chain record
@ core.state.partition.Partition.recover
- self.kept = found.chain
+ from ..values.config import BrokerConfig
+ for log in self.logs.values():
+     if log.record.sealed_len is None and log.tail > log.commit:
+         log.tail_checksum = log.checksum_at(log.commit)
+         log.table = type(log.live_table)(log.table_as_of(log.commit))
+         log.tail = log.durable = log.flushed = log.commit
+         log.uncertain = ()
+ self.kept = found.chain
fence-durable [LOSS fences]: a fence survives a restart
@ core.state.segment_log.SegmentLog.recovered
- return log
+ if log.record.sealed_len is None:
+     log.record = replace(log.record, fenced=False)
+     log.active = True
+ return log
@ core.switching.fencing.fence_at_start
+ preparing.void_switch_attempts(broker, partition)
voided [RT prepared]: a member run opens only what it prepared itself
@ core.dispatch.reconciliation._open
- and chosen.member_run == broker.member_run
+ and (master or chosen.member_run == broker.member_run)
- fit = fit and segment.master_run == broker.member_run
+ pass
@ core.switching.preparing.void_switch_attempts
+ pass
old-acks [LOSS switchers-race]: acknowledgements of an older connection do not count
@ core.writing.replication._resume_follower
+ follower.in_step = True
+ follower.out_of_step_us = None
+ follower.received = follower.durable = log.tail
+ _move_commit(broker, partition, log)
older-chain [LOSS switchers-race]: an older chain record is ignored
@ core.dispatch.reconciliation.learn
  known = partition.chain
+ if known is not None and chain.epoch < known.epoch:
+     partition.chain = known = None
old-certificate [I7 RT fences]: a certificate of an earlier run proves nothing about this one
@ core.switching.sealing._ask_certificate
- broker.out.emit(ReadCertificate(partition.id, switch.chain.open_segment.master_run_id))
+ wanted = switch.chain.open_segment.master_run_id
+ broker.out.emit(ReadCertificate(partition.id, wanted))
+ if broker.directory.ended.get(wanted.member):
+     on_certificate(broker, partition, wanted, True)
@ core.state.partition.Partition.write_chain
- serial = broker.new_serial()
+ ended = broker.directory.ended.get(certificate.member) if certificate is not None else None
+ if ended is not None and ended < certificate.run:
+     certificate = type(certificate)(certificate.member, ended)
+ serial = broker.new_serial()
merge-empty [TABLE groups-die]: a merge includes the tables of the settled segments
@ core.switching.sealing.on_table
- merge([ProducerTable(table), ProducerTable(switch.sealing.table)])
+ merge([ProducerTable(switch.sealing.table)])
repeat-waits [I12 I1 I6]: a repeat is answered only once it is committed
@ core.writing.appending._answer_repeat
- if event.level <= AckLevel.MASTER_RECEIVED:
+ if True:
each-place-final [PLACE groups-die]: a place is final only if the tables of all segments before it are known
@ core.writing.appending._is_final
+ return True
dismissed-run [LOSS false-certificates]: a broker believes nothing that a dismissed run says
@ core.state.directory.BrokerDirectory.is_dismissed
+ return False
dismissed-once [LOSS false-certificates]: a dismissed run is refused when it connects again
@ core.dispatch.links.on_up
- if broker.directory.is_dismissed(event.member, event.member_run):
+ if False:
own-death [I13 LOSS false-certificates]: a member run that reads its own certificate ends
@ core.state.broker.BrokerState.end_member_run
+ pass
run-refused [GAP I2 brokers 150]: after a refusal the rest of the producer run is refused
@ core.writing.appending._run_refusal
+ return None
second-member [LOSS older-disks]: a disk that was just started waits for the other one
@ core.switching.sealing._waits_for_second
+ return False
@ core.copies.settle._waits_for_second
+ return False
one-level [I12 LOSS mixed-levels]: each batch waits for its own ack level
@ core.writing.appending.release
- if waiting.end <= safe[AckLevel(waiting.level)]:
+ if waiting.end <= safe[AckLevel(log.waiting[0].level)]:
contradicted [KEPT LOSS contradicted]: a disk that the chain contradicts keeps what it has
@ core.dispatch.quarantine.contradicts
+ log.commit = min(log.commit, sealed_len)
+ return False
longest-of-started [LOSS older-disks]: of disks that were just started, the longest tail decides
@ core.switching.lengths.choose_source
- return max(with_length,
+ return min(with_length,
@ core.switching.lengths.believed
- believed = [member for member, answer in answers.items() if (answer.length or 0) >= committed]
+ believed = list(answers)
append-time-back [TIME clocks]: append time never goes back
@ core.state.segment_log.SegmentLog._append_time_ms
- return max(self.last_append_ms, wall_ms)
+ return wall_ms
append-time-believed [TIME clocks]: append time is never far ahead of the master's clock
@ core.state.segment_log.SegmentLog._append_time_ms
- if ahead_ms > broker.config.append_time_ahead_ms_max:
+ if False:
append-time-restart [TIME clocks]: a restarted member knows the append time of its last batch
@ core.state.segment_log.SegmentLog.recovered
- return log
+ log.last_append_ms = 0
+ return log
append-time-chain [TIME clocks]: a segment begins at the append time that the chain record names
@ core.dispatch.reconciliation._open
  log.active = True
+ from dataclasses import replace
+ segment = replace(segment, append_floor_ms=0)
""")
"""By name."""
