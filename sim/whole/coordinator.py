"""The coordinator of a world of complete brokers: the judge reads its records as they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.events import CursorRecord
from seriatim_broker.core.values.placement import Intent
from seriatim_broker.interfaces.coordinator import Compare, Delete, Operation, Put, TxnResult
from seriatim_broker.runtime.coordinator.keys import Keys, partition_of
from seriatim_broker.runtime.coordinator.records import (
    cursor_from_value,
    member_from_record,
    page_numbers,
    parse_chain,
    parse_record,
    spec_from_value,
)
from seriatim_broker.runtime.membership.watermarks import sequence_of
from seriatim_broker.testing.memory_coordinator import StoreCopy
from seriatim_broker.testing.simulated_coordinator import CoordinatorFaults, CoordinatorServer
from seriatim_broker.testing.virtual_time import ProcessClock, ProcessLoop
from seriatim_local.death_certificates import CertificateWriter

from ..basics.schedule import Schedule
from ..faults import Options
from ..judge import PERSON, Judge

CLUSTER = "sim"
OPERATOR = "operator-"
"""How the name of an operator's connection begins; its epoch follows."""

Snapshot = tuple[StoreCopy, dict[PartitionId, tuple[Chain, int]], dict[str, CursorRecord], dict[MemberId, int]]


class RuntimeCoordinator(CoordinatorServer):
    """A coordinator whose records the judge reads. The injector and the world look chains up in `records`.

    Attributes:
        writers: The broker that wrote each chain last.
        registrations: Of each disk the run that was registered last, and the one that its record had before.
    """

    def __init__(self, schedule: Schedule, options: Options, judge: Judge) -> None:
        faults = CoordinatorFaults(
            delay_us_max=options.coordinator_us_max,
            txn_lost_share=options.txn_lost_share,
            txn_answer_lost_share=options.txn_answer_lost_share,
            txn_late_share=options.txn_late_share,
            read_lost_share=options.read_lost_share,
        )
        super().__init__(schedule.time, schedule.rng, faults)
        self.keys = Keys(CLUSTER)
        self.observe = self._observe
        self._schedule = schedule
        self._judge = judge
        self._chains: dict[PartitionId, tuple[Chain, int]] = {}
        self._cursors: dict[str, CursorRecord] = {}
        self._members: dict[str, MemberId] = {}
        self._may_go_back = "restore" in options.kinds
        self._used_epochs: dict[str, int] = {}  # by the key of a cursor: the highest that any group of the name had
        self._certified: set[RunId] = set()
        self._operator_epoch = 0  # of the operator that was seen last
        self._member_runs: dict[MemberId, int] = {}  # as the records of members have them
        self.registrations: dict[MemberId, tuple[int, int]] = {}
        self.writers: dict[PartitionId, str] = {}
        self.label_of: Callable[[str], str] = lambda group: group  # the judge's name of the group that has the name
        self._runner = ProcessLoop(schedule.time, ProcessClock(schedule.time, 0, 0), "runner")
        self._runner.call_soon(self._start_runner)
        self._writer: CertificateWriter | None = None

    @property
    def records(self) -> RuntimeCoordinator:
        """Where chains are."""
        return self

    def chain(self, partition: PartitionId) -> tuple[Chain | None, int]:
        """The chain of a partition and the revision that wrote it; (None, 0) if the partition has no chain."""
        return self._chains.get(partition, (None, 0))

    def watermark(self, member: MemberId) -> int:
        """How far this disk was durable when its broker noted it last; 0: it never did."""
        return sequence_of(self.store.items.get(self.keys.watermark(member.broker)), member)

    def cursor(self, partition: PartitionId, group: str) -> tuple[CursorRecord | None, int]:
        """A group's cursor; the revision is not reported."""
        return self._cursors.get(self.keys.cursor(partition, group)), 0

    # ---- an older copy of it ------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A copy of all records, for `restore`."""
        return self.store.copy(), dict(self._chains), dict(self._cursors), dict(self._member_runs)

    def restore_snapshot(self, snapshot: Snapshot | None) -> None:
        """Go back to a snapshot, or to nothing. Revisions count on from there, as after a restore without a bump."""
        copy, chains, cursors, runs = snapshot or (StoreCopy(), {}, {}, {})
        self.restore(copy)
        self._chains, self._cursors, self._member_runs = dict(chains), dict(cursors), dict(runs)
        self._certified = {run for run in self._certified if self.keys.certificate(run) in copy.items}

    # ---- what operators want ------------------------------------------------------------------------

    def intents(self) -> dict[str, Intent]:
        """What an operator wants of each broker group, if it said anything."""
        prefix = self.keys.broker_group_specs
        items = [item for key, item in self.store.items.items() if key.startswith(prefix)]
        return {item.key.rpartition("/")[2]: spec_from_value(item.value).intent for item in items}

    # ---- certificates, as the local runner writes them ----------------------------------------------

    def _start_runner(self) -> None:
        self._writer = CertificateWriter(self.client("runner"), CLUSTER)
        self._runner.create_task(self._writer.run(), name="certificates")

    def certify(self, run: RunId) -> None:
        """The runner knows that a run has ended. It writes the certificate as soon as it reaches the coordinator."""
        if run in self._certified:
            return
        self._certified.add(run)
        assert self._writer is not None
        self._schedule.tell("runner", f"certifies {run}")
        self._runner.call_soon(self._writer.submit, run, "ended in the simulation")

    def certify_falsely(self, run: RunId, own_us: int) -> None:
        """Write, as the runner in error, a certificate of a run that lives. The run reads it only after `own_us`."""
        self._judge.seen.states.add("certified falsely")
        name = run.member.broker
        self.isolated[name] = self.isolated.get(name, 0) + 1
        self._schedule.after(own_us, self._reached_again, name)
        self.certify(run)

    def _reached_again(self, name: str) -> None:
        self.isolated[name] = max(0, self.isolated.get(name, 0) - 1)

    def tell_certificates(self, _name: str) -> None:
        """Brokers list them by themselves."""

    def close(self) -> None:
        """End the runner."""
        self._runner.kill()

    # ---- what the judge is shown --------------------------------------------------------------------

    def knows(self, member: MemberId) -> None:
        """An incarnation that there is."""
        self._members[member.incarnation] = member

    def _observe(self, client: str, compares: Sequence[Compare], done: Sequence[Operation], result: TxnResult) -> None:
        self._schedule.mark("coord", f"{client} {result.revision} {len(done)}")
        for operation in done:
            if isinstance(operation, Delete):
                self._removed(operation)
            if not isinstance(operation, Put):
                continue
            if operation.key.startswith(self.keys.tombstones):
                self._judge.topic_gone(partition_of(operation.key))
            elif operation.key.startswith(self.keys.chains):
                self._chain_written(client, operation, compares, result.revision)
            elif operation.key.startswith(self.keys.members):
                self._member_written(operation)
            elif operation.key.startswith("/seriatim/sim/cursors/"):
                self._cursor_written(client, operation)
            elif operation.key == self.keys.operator:
                self._operator_seen(records_pb2.OperatorRecord.FromString(operation.value).epoch)
            elif operation.key.startswith(self.keys.broker_group_specs):
                self._intent_written(client, operation)
            elif operation.key.startswith(self.keys.certificates):
                record = records_pb2.DeathCertificate.FromString(operation.value)
                self._judge.certified(client, RunId(member_from_record(record.member), record.run))

    def _operator_seen(self, epoch: int) -> None:
        """OPERATOR: an operator with this epoch was seen, and none with a higher one before."""
        if epoch < self._operator_epoch:
            self._judge.fail("OPERATOR", f"the epoch of operators went from {self._operator_epoch} to {epoch}")
        self._operator_epoch = epoch

    def _intent_written(self, client: str, put: Put) -> None:
        """OPERATOR: no operator writes what it wants of a broker group after a newer one was seen."""
        if int(client.removeprefix(OPERATOR).partition(".")[0]) < self._operator_epoch:
            self._judge.fail("OPERATOR", f"{client} wrote {put.key} after {self._operator_epoch} was seen")

    def _chain_written(self, client: str, put: Put, compares: Sequence[Compare], revision: int) -> None:
        partition = partition_of(put.key)
        items = self.store.items
        keys = [self.keys.page(partition, number) for number in page_numbers(parse_record(put.value))]
        if not all(key in items for key in keys):
            self._judge.fail("I7", f"{client} writes a chain whose pages {keys} are not all there")
        pages = [items[key].value for key in keys]
        if pages:
            self._judge.seen.states.add("paged")
        chain = parse_chain(put.value, pages)
        before, _ = self.chain(partition)
        self._chains[partition] = (chain, revision)
        self.writers[partition] = client
        if client == PERSON:
            self._judge.rebuilt(chain)
            return
        self._judge.chain_written(client, before, chain, self._certificate(before, compares))

    def _member_written(self, put: Put) -> None:
        record = records_pb2.MemberRecord.FromString(put.value)
        member = member_from_record(record.member)
        before = self._member_runs.get(member, 0)
        if record.run > before:
            self.registrations[member] = (record.run, before)
        self._member_runs[member] = record.run

    def _certificate(self, before: Chain | None, compares: Sequence[Compare]) -> RunId | None:
        """The certificate that the transaction compared, if it is of the disk of the open segment's master."""
        master = before.open_segment.members[0] if before is not None else None
        if master is None:
            return None
        prefix = self.keys.certificates_of(master)
        runs = [int(compare.key.removeprefix(prefix)) for compare in compares if compare.key.startswith(prefix)]
        return RunId(master, max(runs)) if runs else None

    def _cursor_written(self, client: str, put: Put) -> None:
        _, _, rest = put.key.partition("/cursors/")
        partition, _, group = rest.partition("/")
        new = cursor_from_value(put.value)
        old = self._cursors.get(put.key)
        self._cursors[put.key] = new
        is_made = old is None or old.deleted
        was_used = new.group_epoch <= self._used_epochs.get(put.key, 0)
        if is_made and not new.deleted and was_used and not self._may_go_back:
            self._judge.fail("EPOCH", f"{client} makes {group} again in epoch {new.group_epoch}, which was used")
        self._used_epochs[put.key] = max(new.group_epoch, self._used_epochs.get(put.key, 0))
        if not new.deleted:
            known = None if is_made else old
            self._judge.cursor_written(client, PartitionId(int(partition)), self.label_of(group), known, new)

    def _removed(self, delete: Delete) -> None:
        if delete.key.startswith("/seriatim/sim/cursors/"):
            self._judge.seen.states.add("deleted cursor removed")
            assert self._cursors.pop(delete.key).deleted, delete.key
        elif delete.key.startswith(self.keys.tombstones):
            self._judge.seen.states.add("tombstone removed")
