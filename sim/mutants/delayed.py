"""Bugs in delayed messages."""

from .rows import mutations

MUTATIONS = mutations("""
[D1 D2 D3 D4 I1 I2 I9 I12 K1 K2 CORE delayed]
fire-unsettled: nothing is fired or cancelled before all segments before are settled
@ core.delayed.serving.take_up
- if not chain.settled_before(no) or log.record.quarantined:
+ if log.record.quarantined:
@ core.delayed.firing._drop_repeats
- pause_us = firing.volleys.read_failed(volley, broker.now.mono_us)
- broker.poll(pause_us, TimerKind.DELAYED, partition.id, firing.no)
- return True
+ return False
fire-above-commit: only what is committed is fired
@ core.delayed.firing._make_volleys
- if row.index + row.message_count > log.readable_below:
+ if False:
fresh-is-durable: rows are looked for on the disk when they are there
@ core.delayed.firing._take_fresh
- if row.index < log.durable:
+ if True:
fire-repeat: what readers skip as a repeat is passed, and not fired
@ core.delayed.firing._drop_repeats
+ return False
volley-is-kept: a number has the same messages for every server
@ core.delayed.ledger.begin
  rows = read_delay_rows(partition.ledger_rows.get(name, {}).items())
+ lowest = min((volley.number for volley in rows.volleys), default=rows.next_number)
+ rows = rows._replace(volleys=(), next_number=lowest)
cancel-too-late: a message in a volley is not cancelled
@ core.delayed.cancelling.on_found
- elif volley is not None and (volley.is_move or not (volley.number and ledger.is_common(firing, volley.written))):
-     serving.try_again(broker, request, "the message is about to be fired or moved")
- elif index in firing.moved:
-     broker.out.emit(DelayedCancelled(request, CancelOutcome.TOO_LATE, None, may_be_moved=True))
- elif volley is not None or not firing.passed.not_passed(index, index + 1):
+ elif not firing.passed.not_passed(index, index + 1):
cancel-is-durable: a cancellation is answered when every eligible member has it
@ core.delayed.cancelling._confirm
+ _answer(broker, request, CancelOutcome.CANCELLED)
trim-pending: retention drops nothing that is pending
@ core.delayed.retaining.on_read
- first = next((indexes[0] for indexes in waiting if indexes), None)
+ first = None
two-clocks: the master refuses what is not due by its own clock
@ core.writing.appending._delay_refusal
- if not header.flags & FLAG_FIRED or early_ms <= EARLY_MS_MAX:
+ if True:
not-before-due: readers pass a delayed batch
@ core.values.passing.is_passed_by
- bool(header.flags & (FLAG_DELAYED | FLAG_CONTROL)) or header.for_group not in for_it
+ bool(header.flags & FLAG_CONTROL) or header.for_group not in for_it
[D1 D2 D3 D4 D5 I1 I2 I9 I12 K1 K2 CORE delayed-retention]
move-what-is-left: what was fired or cancelled, or is in a volley, is not moved
@ core.state.delayed.Firing.left_of
- if not self.in_volleys.isdisjoint(left):
+ if False:
moved-is-stored: what is moved is passed when it is stored, and not before
@ core.state.delayed.Firing.give_number
- self.numbered.append(volley)
+ self.numbered.append(volley)
+ for span in volley.spans if volley.is_move else ():
+     self.passed.pass_over(span.indexes)
cancel-moving: a message in a move waits until the move is stored
@ core.delayed.cancelling.on_found
- volley.is_move or not (volley.number and ledger.is_common(firing, volley.written))
+ not volley.is_move and not (volley.number and ledger.is_common(firing, volley.written))
moved-is-not-late: what was moved is cancelled in its new place
@ core.delayed.cancelling.on_found
- elif index in firing.moved:
+ elif False:
volley-is-later: a volley says nothing of the places after it
@ core.values.log.fired_in
- below = volley.index if no == segment_no else INDEX_MAX
+ below = INDEX_MAX
last-place-answers: a message that was moved often is cancelled in its last place
@ core.values.log.moved_to
- if origin in span.indexes:
+ if origin in span.indexes and not place:
settled-until: the record of a settled segment says until when something is delayed
@ core.copies.settle._go_on
- delayed_until_ms=partition.logs[no].delayed_until_ms,
+ delayed_until_ms=0,
[D1 D2 D3 D4 I1 I2 I9 I12 K1 K2 CORE delayed-blind]
blind-reads-the-log: what a server may not know is read in the log before it fires
@ core.state.delayed.Firing.learn
- self.fence = Fence(max(self.fence.epoch, last_epoch) + 1, learns=True, is_written=False, dropped=dropped)
+ self.fence = Fence(max(self.fence.epoch, last_epoch) + 1, is_written=False, dropped=dropped)
""")
"""By name."""
