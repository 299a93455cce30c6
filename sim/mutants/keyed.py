"""Bugs in consumer groups in which order is by key."""

from .rows import mutations

MUTATIONS = mutations("""
[K1 K2 K3 K4 K5 K6 J1 J2 J5 I13 CORE keyed]
token-and-offset: an acknowledgement counts under the token of the grant that gave the message
@ core.consumers.keyed.outcomes._grant_at
- grant = _grant_of(keyed, consumer, token)
+ for name in list(keyed.line.singles):
+     keyed.grants.weigh(name)
+ found = (run for run in keyed.grants.by_token.values() if run.is_given and run.offsets[run.done] == offset)
+ grant = _grant_of(keyed, consumer, token) or next(found, None)
head-stays: a failed message stays the first one of its key
@ core.state.keyed.dispatcher.KeyedDispatcher.note_failure
  self.line.changed[key.name] = None
+ key.live = key.live[1:] + key.live[:1]
one-entry-a-key [keyed-delayed]: a key that is delayed counts once, however many messages are after it
@ core.state.keyed.dispatcher.KeyedDispatcher.take_in
  key = self.grants.weigh(name)
+ if key is not None and key.is_delayed:
+     key.is_delayed = False
+     self.line.queue(key)
frames-by-size [keyed-frames]: a frame has no more messages than its bytes allow
@ core.consumers.keyed.grants._grant
- bytes_max = min(broker.streams.credits[consumer.stream], broker.config.deliver_bytes)
+ bytes_max = 1 << 40
rest-is-ready [keyed-frames]: what a frame has no room for is ready again
@ core.state.keyed.frames.cut
- kept = at = 0
+ kept, at, ready = 0, 0, list(keyed.line.ready)
  frame.offsets = frame.offsets[:count]
+ keyed.line.ready.clear()
+ keyed.line.ready.extend(ready)
list-first: what was set aside is older than what is live
@ core.state.keyed.dispatcher.KeyedDispatcher.take_in
- if key.aside or key.phase is KeyPhase.PARKED:
+ if key.aside and not key.is_held:
+     key.live.append(index)
+     self.live_count += 1
+     return
+ if key.aside or key.phase is KeyPhase.PARKED:
@ core.consumers.keyed.grants._first_messages
- if key.aside:
+ if key.aside and not key.live:
full-first: a new server first sends all rows, which replace what was there
@ core.consumers.cursors.control_records.send
  previous = ledger.version or serial
+ ledger.told.update(dict.fromkeys(others))
@ core.consumers.cursors.control_records.on_replicate_ledger
- group = message.cursor.consumer_group
+ group, change = message.cursor.consumer_group, message.change
+ known = partition.ledger_versions.get(group)
+ if known is None or known[0] != message.server_epoch:
+     version = LedgerVersion(message.server_epoch, message.previous)
+     partition.ledger_versions = put(partition.ledger_versions, group, version)
+ message = replace(message, change=replace(change, is_full=False))
live-joins-the-list: what is live is handed over in the lists
@ core.state.keyed.room.set_some_aside
+ return False
terms-grow: the tokens of the next server are higher than those of the last one
@ core.values.events.CursorRecord.after_term
+ return self
not-into-the-empty: nothing is handed over to a segment without messages
@ core.consumers.keyed.handoff._has_messages
+ return True
exactly-the-one-named: the next server begins from the handoff that the cursor names
@ core.consumers.groups.beginning._handed_over
+ return seat.partition.handoffs.get(seat.group.name)
blind-goes-back [keyed-lost]: if its rows are lost, a consumer group goes back to the oldest message that was set aside
@ core.consumers.groups.beginning.begin_at_oldest
- elif record.oldest:
+ elif False:
back-is-flagged [keyed-lost]: what comes again after a consumer group went back is flagged
@ core.consumers.cursors.crossing.with_term
- return record.after_term(
+ return replace(record, repeated_to=0).after_term(
aside-is-reserved [keyed-full]: what is granted from a list is reserved before
@ core.consumers.keyed.grants._first_messages
- if no < keyed.segment_no else make_offset(no, below)
+ if True else 0
delay-ends-with-message [keyed-waits]: a key waits no longer than its first message is there
@ core.state.keyed.dispatcher.KeyedDispatcher._first_is_done
- key.error, key.first = "", 0
+ key.error, key.first, ready_us = "", 0, key.ready_us
  if key.phase is KeyPhase.RETRY and not key.aside:
      self.line.to_phase(key, None)
+ if not key.token:
+     self.line.wait_until(key, ready_us)
first-is-read [keyed-waits]: a server takes the first message of a key from its record
@ core.state.keyed.rows._read_key
  dispatcher.line.queue(key)
+ key.first = 0
alone-tells-lists [keyed-dropped]: a consumer group that passes a stub alone says what its lists had there
@ core.consumers.groups.without_consumers._oldest_listed
+ return 0
own-disk-too [keyed-slow]: a server answers for exactly the handoff that its own disk has
@ core.consumers.keyed.handoff.on_stored
- if handing.handoff.segment_no == no and handing.serial == serial:
+ if handing.handoff.segment_no == no:
under-way-stays [keyed-late]: a write of a cursor that is under way is not forgotten after a rebuild
@ core.consumers.groups.record_changes._is_under_way
+ return False
further-waits [keyed-further]: where order is by key, a group is not served at an older place
@ core.consumers.cursors.control_records.was_further
+ return False
rebuilt-goes-back [keyed-further]: after a rebuild, a server that lacks the control record goes back to what was set
  aside
@ core.control.rebuild.plan_cursor
- handoff = UNKNOWN_HAND_OVER if known.mode.is_keyed and not known.at_most_once else NO_HAND_OVER
+ handoff = NO_HAND_OVER
drop-is-no-ack [+ I1 I2 I8 crossings]: a drop that consumers heard of stays noted until a later message counts
@ core.state.ledger.Ledger.note_dropped
- self.untold_token = max(token, 1)
+ self.untold_token = self.dropped_from = self.dropped_position = 0
last-confirms [+ I9 I11 keyed-halves]: a joining member has all control records when it confirms the last one
@ core.consumers.cursors.control_records.send_all
  plain: list[CursorState] = []
+ serial = broker.new_serial()
- server_epoch, broker.new_serial(), version - 1
+ server_epoch, serial, version - 1
- serial = broker.new_serial()
- broker.send(
+ broker.send(
frozen-waits: nothing changes while the state of the keys is handed over
@ core.consumers.keyed.outcomes._waits
+ return False
given-again: what a consumer was given and said nothing about comes again flagged
@ core.state.keyed.dispatcher.KeyedDispatcher.end_grant
- return True
+ grant.is_given = False
+ return True
message-started [keyed-rests]: begun is a message, and not its grant
@ core.state.keyed.dispatcher.KeyedDispatcher.acknowledge
- grant.is_started = False
+ pass
started-when-begun [keyed-rests client]: a consumer reports a message as begun when its application begins it
@ seriatim._core.keyed_consumer.KeyedPartitionConsumer._granted
  effects.append(TakeGrants(event.tokens, event.counts, event.offsets))
+ for token in event.tokens:
+     self.begin(token, now_us)
keys-said-when-durable [keyed-parked]: what is said of keys that wait is durable on every eligible member first
@ core.consumers.keyed.waiting_keys.go_on
  for request in waiting:
      request.serial = serial
+ on_replicated(served, 1 << 62)
settings-on-disks [crossings]: mode, policy and term base are on the disks
@ core.consumers.cursors.control_records.replicate
  consumer_group, ledger, record = served.group, served.ledger, served.cursor
+ from ...values.keyed import SETTINGS_DEFAULT
- settings=served.settings, term_base=record.term_base,
+ settings=SETTINGS_DEFAULT, term_base=0,
begun-first [keyed-begins]: the next server grants and ends nothing before every eligible member knows that it has begun
@ core.consumers.groups.beginning._dispatcher_of
- keyed.handoff.is_begun = record.handoff == NO_HAND_OVER
+ keyed.handoff.is_begun = True
seen-key [keyed-parked]: a request means a key as the administrator saw it
@ core.consumers.keyed.waiting_keys._operate_on
  first_offset = keyed.first_offset(key)
+ seen = seen._replace(turn=key.turn, first_offset=first_offset)
""")
"""By name."""
