"""What faults have taken from a world, and what they may still take: disks, processes, and the calm between faults."""

from __future__ import annotations

from seriatim_api.ids import RunId
from seriatim_broker.core.values.events import DeclareGap
from seriatim_broker.core.values.segment import SegmentState

from ..basics.interfaces import Broker, Cluster, Process
from ..basics.setting import Setting
from ..judge import Judge
from ..programs.clients import Clients
from .copies import Copies


class Health:
    """Counts what is lost, and says whether more may be lost, so that no promise is broken by the faults themselves.

    Attributes:
        lost_disks: How many disks were lost.
        past_runs: The runs on them.
    """

    def __init__(self, setting: Setting, cluster: Cluster, judge: Judge, clients: Clients, copies: Copies) -> None:
        self._setting = setting
        self._schedule = setting.schedule
        self._cluster = cluster
        self._judge = judge
        self._clients = clients
        self._copies = copies
        self.lost_disks = 0
        self.past_runs: list[RunId] = []
        self._calm_from_us = 0
        self._has_lost_a_group = False

    def hung_brokers(self) -> list[Broker]:
        """Brokers whose disks complete no write now."""
        return [broker for broker in self._cluster.brokers.values() if broker.hung_until_us > self._schedule.now_us]

    def full_brokers(self) -> list[Broker]:
        """Brokers whose disks have reached their reserve now."""
        return [broker for broker in self._cluster.brokers.values() if broker.full_until_us > self._schedule.now_us]

    def may_lose_a_disk(self, broker: Broker) -> bool:
        """One disk may go, because two copies are promised. In some worlds another may go when there are two again.

        None goes while another one hangs: that one may have the only other copy, and nothing continues before it does.
        """
        if any(hung is not broker for hung in self.hung_brokers()):
            return False
        if self.lost_disks == 0:
            return True
        return self.lost_disks < self._setting.options.disk_loss_max and self._copies.is_repaired()

    @property
    def lacks_copies(self) -> bool:
        """Whether a lost disk may have had one of two copies, and the other one is still alone."""
        return self.lost_disks > 0 and not self._copies.is_repaired()

    def lost_a_disk(self) -> None:
        """A disk will be missing, or its last writes."""
        self.lost_disks += 1

    def may_lose_a_group(self) -> bool:
        """Once in a run, while nothing else is missing, all disks of a group may go: an administrator will declare a
        gap."""
        if not self._setting.options.may_lose_groups or self._has_lost_a_group:
            return False
        if self.lacks_copies:
            return False
        self._has_lost_a_group = True
        self._schedule.after(self._operator_us(), self._operate)
        return True

    def is_calm(self) -> bool:
        """Whether all brokers run, reach each other and the coordinator, and have their disks: one fault at a time."""
        if self._cluster.coordinator.is_down or any(self._cluster.coordinator.isolated.values()):
            return False
        if self._schedule.now_us < self._calm_from_us:
            return False
        processes = [broker.process for broker in self._cluster.brokers.values()]
        for broker, process in zip(self._cluster.brokers.values(), processes, strict=True):
            if process is None or process.frozen or not process.is_serving:
                return False
            if RunId(broker.member, broker.run) in self._judge.seen.certified_falsely:
                return False
        return all(broker.given_up is None for broker in self._cluster.brokers.values())

    def disturbed(self) -> None:
        """Note that something happened that takes time to be over; see `is_calm`."""
        self._calm_from_us = self._schedule.now_us + self._cluster.linked_us

    def run_over(self, process: Process) -> None:
        """A process ended itself: it is started again, on another disk if its own was given up."""
        broker = process.broker
        self._schedule.tell("FAULT", f"{process.name} ends itself")
        self._judge.seen.states.add("ended itself")
        process.leave_network(silent=False)
        process.end()
        broker.disk.crash(self._schedule.rng.randint(0, broker.disk.pending_count))
        broker.ended_badly(machine=False)
        self._clients.process_ended(process, silent=False)
        if broker.given_up is not None:
            broker.replace_disk()
        self._schedule.after(
            self._schedule.rng.randint(1_000, self._setting.options.restart_us_max), broker.start_again
        )

    def disk_is_lost(self, broker: Broker) -> None:
        """The slot will have an empty disk: remember what was on the other one."""
        self.lost_disks += 1
        self.past_runs.extend(RunId(broker.member, run) for run in range(1, broker.run + 1))
        self._judge.seen.graveyard.append((broker.member, broker.real_disk.durable.twin()))

    def _operator_us(self) -> int:
        return self._schedule.rng.randint(20_000, 400_000)

    def _operate(self) -> None:
        """An administrator looks which segments are lost for good, and declares them so, until the record says it."""
        running = [broker.process for broker in self._cluster.brokers.values() if broker.process is not None]
        for partition in self._setting.partitions:
            for segment in self._copies.chain(partition).segments:
                is_over = segment.state in (SegmentState.SEALED, SegmentState.UNSETTLED)
                if is_over and running and all(self._copies.is_gone(member) for member in segment.members):
                    process = self._schedule.rng.choice(running)
                    self._schedule.tell("operator", f"declares {partition}:{segment.no} lost at {process.name}")
                    self._judge.rules.gaps.asked.add((partition, segment.no))
                    request = self._clients.ask(None, lambda _answer: None)
                    process.deliver(DeclareGap(request, partition, segment.no))
        self._schedule.after(self._operator_us(), self._operate)
