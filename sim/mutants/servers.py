"""Rules of serving: which member may deliver at a moment or become the server, and what a new server may rely on.

Most of these show with three members, with a link that is slow in one direction, or with a connection that breaks while
a disk is slow.
"""

from .rows import mutations

MUTATIONS = mutations("""
resume-durable [I12 LOSS broken-links]: after a reconnect, what a slave has in memory does not count as flushed
@ core.writing.replication.on_tail_answer
- follower.durable = message.durable
+ follower.durable = message.tail
reserved-by-one [I9 I11 servers-fall]: a reservation counts only when every eligible member has confirmed it to this
  server
@ core.consumers.groups.beginning.begin
- subscriptions.begin(served)
+ ledger.safe_acked, ledger.safe_reserved = ledger.acked, ledger.reserved
+ subscriptions.begin(served)
older-server [I9 I11 late-words]: a control record of an older server is refused, also after a restart
@ core.consumers.cursors.control_records.replaces
- return (new.group_epoch, new.server_epoch) >= (known.group_epoch, known.server_epoch)
+ return new.group_epoch >= known.group_epoch
@ core.consumers.cursors.control_records._is_of_older_server
+ segment = partition.chain.segment(no) if partition.chain is not None else None
+ return segment is not None and server_epoch < segment.server_epoch
refusals-stay [SERVER I9 K2 K3 keyed-words]: a member that restarts refuses the servers before
@ core.peers.right.refuse_at_start
+ pass
@ core.consumers.cursors.control_records._is_of_older_server
+ # a member that refuses a control record sends its sender the newer chain record, which hides this bug mostly
+ segment = partition.chain.segment(no) if partition.chain is not None else None
+ return segment is not None and server_epoch < segment.server_epoch
eligible-stay [I14 restarts]: only members that hold a segment in full are eligible at its seal
@ core.switching.lengths.seal
- eligible=tuple(sorted(holders, key=old.members.index)),
+ eligible=tuple(dict.fromkeys((*sorted(holders, key=old.members.index), *old.eligible))),
lease-from-receipt [SERVER slow-links]: the lease counts from the sending of the heartbeat
@ core.dispatch.links.on_heartbeat_answer
- link.answered_us = max(link.answered_us, message.sent_us)
+ link.answered_us = broker.now.mono_us
no-second-look [SERVER slow-reads]: the server checks its right again after the read
@ core.consumers.exclusive.delivery.deliver_held_back
- if not right.has_right(served.broker, served.partition, served.segment):
+ if False:
eligible-at-once [I9 I11 servers-fall]: a member is listed as eligible only when it has the control records
@ core.consumers.groups.eligibility.on_eligible_request
- if disks.is_hung(broker, sender):
-     return
+ from ...values.chain import add_eligible
+ if held.confirmed:
+     partition.write_chain(broker, WriteOwner.RIGHT, add_eligible(partition.chain, no, sender), no)
+     return
unreachable-is-gone [SERVER cut-short]: an unreachable server does not count as ended
@ core.peers.right._has_ended
+ return not broker.is_linked(member)
half-server [I14 LOSS half-copies]: a server holds the whole segment
@ core.peers.right.take_over
- want(broker, partition, no, server_epoch)
+ log, chain = partition.logs.get(no), partition.chain
+ segment = chain.segment(no) if chain is not None else None
+ if log is not None and not log.is_in_sync and segment is not None and segment.state is SegmentState.SEALED:
+     is_news = segment.server_epoch <= server_epoch and segment.server != broker.member
+     is_free = _is_silent(broker, segment.server) and _nobody_eligible_lives(broker, segment)
+     if is_news and is_free and not partition.is_writing(WriteOwner.RIGHT, no):
+         refuse(broker, partition, no, segment.server)
+         taken = change_server(chain, no, broker.member, (segment.server,))
+         partition.write_chain(broker, WriteOwner.RIGHT, taken, no)
+     return
+ want(broker, partition, no, server_epoch)
old-pages-stay [I5 I7 LOSS long-chains brokers runtime 150]: a changed page is written together with the record
@ runtime.coordinator.chain_layout.ChainArchive.lay_out
- if segments != before.get(number):
+ if len(segments) > len(before.get(number, ())):
""")
"""By name."""

OVERLAPPING = mutations("""
slave-keeps-run [prepared]: a slave opens only what this run prepared
@ core.dispatch.reconciliation._open
- and chosen.member_run == broker.member_run
+ and (not master or chosen.member_run == broker.member_run)
any-session [broken-links]: messages of an older connection do not count
@ core.dispatch.handlers._received
- if link is None or not link.up or link.session != event.session:
+ if link is None or link.member is None:
refused-unanswered [K1 K2 J1 J2 keyed-words]: a control record that is refused is not answered
@ core.consumers.cursors.control_records._is_of_older_server
+ segment = partition.chain.segment(no) if partition.chain is not None else None
+ return segment is not None and server_epoch < segment.server_epoch
""")
"""Rules whose absence shows nowhere, because another covers for each.

Why, and why their code stays, is described in docs/internals/planted-bugs.md.
"""
