"""Rules about broker groups that are cordoned, drained and rolled, or balanced, removed one at a time.

Two brokers decide which member leaves a record: the controller, and the server that carries it out. So a mutant removes
the rule at both.
"""

from .rows import mutations

LEAVING = mutations("""
[groups-change groups runtime]
leaves-when-one-stays [LEAVE LOSS]: a copy leaves a record only if two in-sync copies stay
@ core.control.controller.plan_release
- len(whole) >= min_copies
+ whole
@ core.control.drain.staying_copies
- return [member
+ return 2 * [member
leaves-when-listed [LEAVE LOSS]: only an eligible member counts as an in-sync copy
@ core.control.controller.plan_release
- whole = [member for member in segment.eligible if member not in gone and is_there(member)]
+ whole = [each for each in (*segment.members, segment.server) if is_there(each)]
+ whole = [each for each in whole if each not in gone or each == segment.server]
- len(whole) >= min_copies
+ whole
@ core.control.drain.staying_copies
+ found = [member for member in segment.eligible if member not in leaving]
+ return list(dict.fromkeys((*found, *broker.directory.broker_groups.get(segment.broker_group, ()))))
gate-asks-nobody [GATE]: the gate asks the members, and does not trust the record
@ runtime.duties.restart_gate.RestartGate._ask
+ from ...core.values.messages import CopyReport, Standing
+ return tuple(CopyReport(Standing.IN_SYNC, 0, 0) for _ in segments)
@ core.control.restarts.judge
- return _judge_open(need, answers.get(need.ask[0]), place)
+ return Finding(Verdict.SAFE, "it is in the record", need)
older-operator [OPERATOR]: an operator whose Lease is over changes nothing
@ runtime.controller.broker_groups.BrokerGroups.set
- compares = await guard()
+ from seriatim_api.errors import StaleOperatorError
+ compares = ()
+ try:
+     await guard()
+ except StaleOperatorError:
+     pass
operator-compare [OPERATOR]: an operator's epoch is compared in the transaction
@ runtime.controller.broker_groups.BrokerGroups.set
- txn([*compares, mod_revision_is(key, revision)]
+ txn([mod_revision_is(key, revision)]
tails-forgotten [I13 core]: a drained broker group gives away tail copies as well
@ core.control.controller.plan_release
- gone = set(filter(is_leaving, holders(segment)))
+ gone = set(filter(is_leaving, (*segment.members, *segment.eligible, segment.server)))
""")

MOVES = mutations("""
[balance brokers 150]
rest-is-enough: a planned switch fences, even if the master rests
@ core.switching.fencing.fence_and_answer
- log.fence(broker)
+ if partition.quiescence is not None:
+     return fence_answer(broker, log, message)
+ log.fence(broker)
chosen-alone: a chosen broker group takes the segment with all its members
@ core.switching.switch.on_prepare_answer
  switch = partition.switch
+ if switch is not None and switch.target_broker_group and switch.opening.members[:1] == (sender,):
+     switch.opening.members = switch.opening.members[:1]
""")
"""Rules of moving an open segment to a chosen place, which balanced worlds must find."""

MUTATIONS = LEAVING | MOVES
"""By name."""
