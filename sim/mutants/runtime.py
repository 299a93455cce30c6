"""Rules of the runtime, removed one at a time: worlds of complete brokers must find each of these mutants.

The core believes the runtime in things that it cannot see: that a write is durable, that a message belongs to the
session that it names, that a transaction made its comparisons, that a member run is new and an earlier one has ended.
Each mutant lies to the core in one of these.

Two lies that no world noticed, because the core does not depend on them: messages of a broken connection are treated as
those of the next session (what a living member says of its disk stays true), and no answer is treated as a conflict
(the core reads again in both cases).
"""

from .rows import mutations

MUTATIONS = mutations("""
[I1 I2 I5 I6 I7 I9 I10 I12 RT COPY CORE TABLE CERT brokers runtime]
below-the-watermark [I14 recent-copies]: a disk that ends below its watermark is refused
@ runtime.membership.watermarks.check
+ pass
ask-the-address [CERT started-copies 100]: a start asks whether the run in its record still answers
@ runtime.membership.registration._refuse_a_copy
+ pass
later-run [TWO started-copies core 100]: a member run that sees a later run of its disk ends
@ core.state.broker.BrokerState.end_member_run
+ pass
durable-early: only what the storage reported counts as durable
@ runtime.driver.driver.Driver._submit
  self._tickets.append((ticket, self._token, began_us))
+ self._durable(ticket)
unknown-done [switchers-race]: a missing answer does not count as success
@ runtime.driver.coordinator_requests.CoordinatorRequests._transact
  outcome, revision = await self._try(compares, operations)
+ if outcome is WriteOutcome.UNKNOWN:
+     revisions = (compare.operand for compare in compares if isinstance(compare.operand, int))
+     outcome, revision = WriteOutcome.DONE, max(revisions)
chain-compare [switchers-race]: a write of a chain record compares its revision
@ runtime.driver.coordinator_requests.CoordinatorRequests._prepare
- return _ChainWrite(effect, layout, tuple(compares), tuple(operations))
+ return _ChainWrite(effect, layout, (), tuple(operations))
certificate-compare [I7 groups-die]: a death certificate is read, and compared in the transaction
@ runtime.driver.coordinator_requests.CoordinatorRequests._prepare
- if effect.certificate is not None:
+ if False:
@ runtime.driver.coordinator_requests.CoordinatorRequests.read_certificate
+ self._report(CertificateRead(effect.partition, effect.member_run, True))
run-raised [+ ALARM groups-die]: each start is a new member run
@ testing.simulated_directory.SimulatedDirectory.raise_run
- self.run += 1
+ if self.run:
+     return self.run
+ self.run += 1
own-certificate [groups-die]: a start certifies the runs before it, not its own
@ runtime.membership.registration._certify_earlier_runs
- run.run - CERTIFIED_RUNS_MAX), run.run):
+ run.run - CERTIFIED_RUNS_MAX), run.run + 1):
conflict-done [switchers-race]: a transaction whose comparison failed counts as not written
@ runtime.driver.coordinator_requests.CoordinatorRequests._transact
  outcome, revision = await self._try(compares, operations)
+ outcome = WriteOutcome.DONE if outcome is WriteOutcome.CONFLICT else outcome
durable-latest: a report of the storage covers only the writes up to its ticket
@ runtime.driver.driver.Driver._durable
  token = 0
+ ticket = self._tickets[-1][0] if self._tickets else ticket
""")
"""By name."""
