"""Events of the coordinator that concern many partitions: members, certificates, refused writes, lost decisions."""

from __future__ import annotations

from seriatim_api.ids import RunId

from ..consumers.groups import record_changes
from ..copies import settle
from ..peers import lost_decisions, right
from ..state.broker import BrokerState
from ..state.partition import Partitions
from ..switching import fencing, sealing, tries
from ..values.events import (
    CertificateRead,
    CertificateSeen,
    CompareChains,
    CoordinatorRebuilt,
    DirectoryChanged,
    OwnRecordSeen,
    WritesRefused,
)
from . import links, record


def on_directory(broker: BrokerState, partitions: Partitions, event: DirectoryChanged) -> None:
    """Brokers, disks or broker groups have changed.

    Rule `later-run` (TWO): a member run that sees a later run of its disk ends. Without it:
      1. A process runs with a data directory. A second process starts with a copy of the directory, and registers the
         next member run.
      2. Both write to the logs of the same member, each on its own disk.
      3. The copies of a segment differ, and the members count both processes as one disk.
    """
    directory = broker.directory
    directory.broker_groups = dict(event.broker_groups)
    directory.member_runs = dict(event.member_runs)
    registered = (*(member for _, members in event.broker_groups for member in members), *directory.member_runs)
    directory.learn_holders({member.broker: member for member in registered})
    directory.specs = dict(event.specs)
    directory.forms_of_all = event.forms
    newest = directory.member_runs.get(broker.member, 0)
    if newest > broker.member_run:
        broker.end_member_run(
            f"member run {newest} of {broker.member} has registered, and this is member run {broker.member_run}: "
            "another process has started with this directory or a copy of it"
        )
    links.dismiss(broker, partitions)
    for partition in list(partitions.values()):
        if partition.chain is not None:
            broker.watch_peers(partition.id, partition.chain)
        tries.hurry(broker, partition)
        settle.on_directory(broker, partition)


def on_certificate_read(broker: BrokerState, partitions: Partitions, event: CertificateRead) -> None:
    """The coordinator answered whether a death certificate of a member run exists."""
    if event.exists:
        _note_ended(broker, partitions, event.member_run)
    partition = partitions.get(event.partition)
    if partition is not None:
        sealing.on_certificate(broker, partition, event.member_run, event.exists)


def on_certificate_seen(broker: BrokerState, partitions: Partitions, event: CertificateSeen) -> None:
    """A death certificate was written."""
    _note_ended(broker, partitions, event.member_run)
    for partition in list(partitions.values()):
        right.on_certificate(broker, partition, event.member_run.member)
        tries.hurry(broker, partition)


def _note_ended(broker: BrokerState, partitions: Partitions, run: RunId) -> None:
    """A certificate says that a member run has ended: so have all earlier member runs of its disk.

    Rule `own-death` (I13): a member run that reads its own certificate ends. Without it:
      1. An administrator certifies a member run as dead, but its process lives. The other brokers cut their links to
         it.
      2. The process connects again and again, and is refused each time.
      3. No runner starts the broker again, because its process lives. Its disk is complete, and its copies count as
         lost.
    """
    ended = broker.directory.ended
    ended[run.member] = max(ended.get(run.member, 0), run.run)
    if run.member == broker.member and run.run >= broker.member_run:
        broker.end_member_run(
            f"a death certificate says that member run {run.run} of {run.member} has ended, and this is member run "
            f"{broker.member_run}"
        )
    links.dismiss(broker, partitions)


def on_writes_refused(broker: BrokerState, partitions: Partitions, event: WritesRefused) -> None:
    """The coordinator refuses writes, or takes them again."""
    broker.coordinator.refuses = event.refused
    if not event.refused:
        for partition in list(partitions.values()):
            record.on_writes_taken(broker, partition)


def on_compare_chains(broker: BrokerState, partitions: Partitions, event: CompareChains | CoordinatorRebuilt) -> None:
    """The coordinator may have gone back in time: read each chain record that this disk has."""
    for partition in partitions.values():
        if partition.decided is not None:
            partition.read_chain(broker)


def on_rebuilt(broker: BrokerState, partitions: Partitions, event: CoordinatorRebuilt) -> None:
    """The coordinator was rebuilt: find the place of each consumer group again, and read the chain records."""
    lost_decisions.end(broker, lost_decisions.WRITERS)
    for partition in list(partitions.values()):
        record_changes.on_caught_up(broker, partition)
    on_compare_chains(broker, partitions, event)  # the cursors are read after them


def on_own_record(broker: BrokerState, partitions: Partitions, event: OwnRecordSeen) -> None:
    """This broker's own member record shows whether the coordinator has lost decisions."""
    if event.problem:
        lost_decisions.begin(broker, lost_decisions.OWN_RECORD, event.problem)
    else:
        lost_decisions.end(broker, lost_decisions.OWN_RECORD)


def on_behind(broker: BrokerState, partitions: Partitions, is_behind: bool) -> None:
    """The coordinator has lost decisions: fence the open segments. It has them again: continue, by a switch of each."""
    for partition in list(partitions.values()):
        if not is_behind:
            record_changes.on_caught_up(broker, partition)
            record.on_writes_taken(broker, partition)
        elif any(log.active for log in partition.logs.values()):
            fencing.fence_unsealed(broker, partition)
            fencing.note_fenced(broker, partition)
