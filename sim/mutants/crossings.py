"""Bugs where two features meet: worlds that draw one of them do not show them."""

from .rows import mutations

MUTATIONS = mutations("""
[crossings]
lost-has-start [CORE]: a lost segment of unknown length ends where retention began it
@ core.values.chain.declare_lost
- length = old.start if old.sealed_len is None else old.sealed_len
+ length = old.sealed_len or 0
table-behind-loss [RETAIN TABLE I9]: a stub stays while readers after a lost segment need its producer table
@ core.control.retention.first_kept
- is_needed = chain.reads_table_of(before.no)
+ is_needed = kept.incomplete_table
missing-is-noted [I1 I13 dropped-restored brokers 40]: a cursor of an older coordinator, in a segment that has left the
  record, says what is gone
@ core.consumers.groups.serving._pass_over_missing
- moved = beginning.noting_drop(chain, record, place, record.moved_to(chain.segments[0].no))
+ moved = record.moved_to(chain.segments[0].no)
missing-keeps-epoch [K4 I9 dropped-restored]: such a cursor stays in its group epoch
@ core.consumers.groups.serving._pass_over_missing
- record.moved_to(chain.segments[0].no))
+ record.moved_to(chain.segments[0].no, new_epoch=True))
jump-tells-drop [I1 I13]: a cursor that jumps over a lost segment still says what was dropped
@ core.consumers.cursors.crossing.jump
- ledger.take_up_dropped(seat.cursor)
+ pass
granted-and-gone [K5 J2 keyed-gone]: attempts on a granted message end when retention drops it
@ core.state.keyed.dispatcher.KeyedDispatcher.drop_below
- for key in [grant.key for grant in self.grants.by_token.values()]:
+ for key in ():
first-is-named [K5 J2 keyed-gone]: a record names the message on which attempts were
@ core.state.keyed.rows._record
- key.aside_first if key.aside else dispatcher.first_offset(key),
+ key.aside_first if key.aside else 0,
move-stays [VOID I11 I2 I9]: an exclusive group is not served in an earlier group epoch than the disk knows
@ core.consumers.groups.beginning._is_behind_for_good
- return known is not None and known.group_epoch > record.group_epoch
+ return False
gone-is-noted [I1 I2 I13]: what was dropped or declared lost is noted until a later message counts
@ core.consumers.keyed.grants._note_gone
+ pass
dropped-behind-loss [I13]: a range goes over what was dropped after a lost segment
@ core.consumers.ranges.range_reads._over_what_was_dropped
- first = first_kept(chain, wait.place.segment_no)
+ first = first_kept(chain)
@ core.consumers.ranges.range_reads.on_log_read
- first_kept(chain, wait.place.segment_no)
+ first_kept(chain)
place-is-no-drop [I1]: the chain record says how far messages are dropped, and not the cursor's place
@ core.consumers.cursors.gap_reports.tell_noted_drop
  chain, ledger = served.chain, served.ledger
+ if hasattr(served, "keyed") and place.segment_no == served.segment.no:
+     place = place._replace(index=min(max(place.index, served.cursor.start_index), ledger.acked))
loss-hides-no-drop [I1 I13]: consumers of a key-ordered group are notified of a drop after a lost segment
@ core.consumers.groups.subscriptions._welcome
- end = end_of_drops(served.chain)
+ from ...values.positions import first_kept
+ end = first_kept(served.chain)
new-mode-is-flagged [K4 I9]: what consumers were given before a change of mode comes again flagged
@ core.consumers.groups.operations._given_below
+ return 0
new-mode-keeps-note [I1 I13]: what is gone is reported in the new mode too
@ core.consumers.groups.operations._noted
+ return 0, None
empty-is-a-key [J2]: the empty key is a key, and does not mean every key
@ core.consumers.keyed.waiting_keys._list
- names = [
+ from seriatim_api.key_names import name_of_key
+ names = [
- and event.name in (None, name)
+ and event.name in (None, name, name_of_key(b""))
comer-is-told [I1 I13]: each consumer that comes is notified of the losses and drops that are noted
@ core.consumers.groups.subscriptions._welcome
+ outcomes.join(served, consumer)
forward-ends-with-message [J4 CORE]: the way of a message to the dead-letter topic ends when it is gone
@ core.state.keyed.dispatcher.KeyedDispatcher._first_is_done
- self.forwarder.waiting.pop(key.name, None)
+ forward = self.forwarder.waiting.get(key.name)
+ if forward is None or not forward.number or not (key.aside or key.live):
+     self.forwarder.waiting.pop(key.name, None)
gone-lists-are-passed [I13 I1]: lists pass what is gone, also of keys that wait
@ core.consumers.keyed.grants._pass_gone_lists
+ pass
gone-has-no-attempts [K5 J2]: an attempt on a message that was dropped counts nowhere
@ core.state.keyed.dispatcher.KeyedDispatcher.end_grant
- return False
+ return True
loss-told-once [TOLD]: a consumer is notified of each lost message once
@ core.consumers.cursors.gap_reports.tell_lost
+ tell(broker, consumer, Gap(place.segment_no, place.index, "declared lost"))
drops-told-once [TOLD]: a consumer is notified of each dropped message once
@ core.consumers.cursors.gap_reports.tell_dropped
+ tell(broker, consumer, Dropped(first, end.segment_no, end.index, messages))
told-by-one-server [TOLD client]: what one server has reported is not reported again when the next one reports it
@ seriatim._core.joining.Joining._takes_join
  known = (self._group_epoch, self.segment, self._server_epoch)
+ self._told = ()
note-is-durable [I1 I13]: the note of a drop or a loss is on the disks
@ core.consumers.cursors.control_records.replicate
- untold = ledger.dropped_from if ledger.untold_token else 0
+ untold = 0
""")
"""By name."""
