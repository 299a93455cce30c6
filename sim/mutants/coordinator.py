"""Rules about a coordinator that refuses to write, or goes back in time, removed one at a time."""

from .rows import mutations

MUTATIONS = mutations("""
[LOSS TWICE I7 I8 I9 I11 I14 RT restored]
refused-at-once [LIMIT I13 refusing]: after a refused write a partition waits, longer each time
@ core.state.partition.Partition.write_wait_us
+ return 0
attempt-anew [LIMIT refusing]: a preparation with the same content keeps its attempt id
@ core.switching.switch_attempts.begin
- for attempt in known:
+ for attempt in ():
replaces-undecided [LOSS refusing]: a switcher replaces only preparations that can never be chosen
@ core.switching.switch_attempts.begin
- for attempt in known:
+ for attempt in ():
@ core.switching.switch_attempts.replaced_by
- other.content.segment_no == segment_no and other.compared is None
+ other.content.segment_no == segment_no
older-believed: a record that is older than the known one decides nothing
@ core.peers.lost_decisions.problem
+ return ""
@ core.peers.lost_decisions.contradiction
+ return ""
@ core.switching.opening.contradict
+ prepare_next(broker, partition, switch)
dropped-stays-dropped [I1 dropped-restored]: a rebuild keeps it that retention has dropped messages
@ core.control.rebuild._with_start
+ return segment
record-not-kept [+ I13 restored]: the disk remembers what was decided
@ core.dispatch.reconciliation._keep
+ pass
out-of-date [TWICE restored-alone brokers runtime 100]: a write is not sent if its chain record is known to be out of
  date
@ runtime.driver.coordinator_requests.CoordinatorRequests._is_out_of_date
+ return False
told-gives-no-length [TWICE restored-alone brokers 100]: a member that was notified of a later segment answers no
  switcher before it has read the record
@ core.state.partition.Partition.is_told_of_later
+ return False
read-is-told [TWICE restored-alone brokers 100]: a transaction whose answer was lost is told to the members when a read
  shows it
@ core.state.partition.Partition.may_have_written
+ return False
epoch-compare [I7 revisions-again brokers runtime 100]: a write of a chain record compares the chain epoch of the
  record that it follows
@ runtime.driver.coordinator_requests.CoordinatorRequests._prepare
- compares += is_of_epoch(key, effect.partition, effect.chain.epoch - 1)
+ pass
not-registered-again [ALARM restored brokers runtime 150]: a member record that lost a run is not overwritten
@ runtime.membership.registration.Seen.is_ahead_of
+ return False
rebuilt-is-listed [I13 restored brokers runtime 100]: copies of the coordinator's records are listed again after a
  rebuild
@ runtime.coordinator.rebuilt_watches.RebuiltWatches.end_watches
+ pass
""")
"""By name."""
