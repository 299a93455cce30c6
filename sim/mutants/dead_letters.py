"""Bugs in dead letters."""

from .rows import mutations

MUTATIONS = mutations("""
[J4 K1 K2 I1 I9 I12 I13 CORE dead-letters]
forwarding-ends-once: a message that has a forwarder's number ends in no other way
@ core.consumers.keyed.dead_letters._send
  served.poll(ANSWER_US, TimerKind.KEYS)
+ for name, _ in forwarder.sent:
+     keyed.line.queue(keyed.line.keys[name])
@ core.state.keyed.key.Key.is_held
+ return self.phase is KeyPhase.PARKED
numbered-is-durable: a dead letter is sent only when its number is durable on every eligible member
@ core.state.numbered_sending.NumberedSending.ready
+ ready = [one for one in self.waiting.values() if one.number and one.row is not None]
+ return sorted(ready, key=lambda one: one.number)
in-order-of-numbers: dead letters are sent in the order of their numbers, without gaps
@ core.state.numbered_sending.NumberedSending.ready
- if item.row is None or not is_durable(item.written):
-     break
+ if item.row is None or not is_durable(item.written):
+     continue
- return ready
+ return ready[-1:]
passed-is-stored: a message is passed only when its dead letter is stored
@ core.state.numbered_sending.NumberedSending.answered
- sent[:stored_count]
+ sent
numbers-have-a-term [letters-restored]: each term of a forwarder counts on its own
@ core.state.keyed.rows.rows_to_hand_off
  rows = handed_rows(known.items())
+ from ...values.ledger_rows import write_forwarder
+ rows = [*rows, write_forwarder(dispatcher.forwarder.next_number)]
@ core.state.numbered_sending.NumberedSending.give_number
- max(self.next_number, first_number(term))
+ max(self.next_number, 1)
lost-is-noted [letters-lost]: what is declared lost is noted for consumers that come later
@ core.consumers.keyed.grants._note_gone
- if served.cursor.at_most_once:
+ if served.cursor.at_most_once or end_of_gone(served.chain, offset)[1]:
lost-behind-others [letters-lost]: lists in a lost segment are passed, also after older ones
@ core.state.keyed.lists.Lists.within
+ return []
jump-is-noted [letters-lost]: a cursor that leaves a lost segment says what was lost
@ core.consumers.cursors.crossing._untold
- return make_offset(segment.no, cursor.start_index), (segment.base or 0) + cursor.start_index
+ return 0, 0
forwards-are-wanted [letters-lost]: a group continues with dead letters after a crossing that failed
@ core.consumers.groups.serving._place
- consumer_group.is_forwarding
+ consumer_group.forwards_alone
@ core.consumers.keyed.handoff.on_left
- forwards_alone = keyed.forwarder.waiting and not served.group.consumers
+ forwards_alone = False
passed-is-noted [letters-lost]: a cursor that passes a lost segment says so
@ core.consumers.cursors.crossing._lost_between
- no < segment.no < to_no
+ False
dirty-stays: a server writes what it changed before it forgets a consumer group
@ core.consumers.cursors.consumer_group.forget_if_unused
- (served is not None and served.is_serving and served.ledger.dirty)
+ False
""")
"""By name."""
