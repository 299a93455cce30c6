"""Requests that cause switches, and faults in the middle of a switch."""

from __future__ import annotations

from seriatim_broker.core.values import events as ev

from .strikes import Strikes


class SwitchFaults(Strikes):
    """The requests that cause switches."""

    def inject_complaint(self) -> None:
        """A client complains about a healthy master, at some broker."""
        self._complain(1)

    def inject_two_complaints(self) -> None:
        """The same at two or three brokers at once: several switchers."""
        self._complain(self._rng.choice((2, 2, 3)))

    def inject_race(self) -> None:
        """Two brokers of other groups switch at once, each reaching only one member of the open segment."""
        partition = self._partition()
        chain, _ = self._scene.cluster.coordinator.records.chain(partition)
        if chain is None:
            return
        segment = chain.open_segment
        members = [member.broker for member in segment.members]
        others = [name for name in sorted(self._scene.cluster.brokers) if name not in members]
        if len(others) < 2:
            return
        first, second = self._rng.sample(others, 2)
        pairs = [(first, members[0]), (members[0], first), (second, members[1]), (members[1], second)]
        self._tell(f"{first} and {second} race for segment {segment.no}, cut {pairs}")
        self._hold(pairs, breaks=False)
        for name in (first, second):
            self._ask(name, lambda request, until: ev.ResolveProducer(request, partition, segment.no, until))

    def inject_fenced_apart(self) -> None:
        """A switcher reaches one member of the open segment only, which restarts; both are alone with their clients."""
        partition = self._partition()
        chain, _ = self._scene.cluster.coordinator.records.chain(partition)
        if chain is None:
            return
        segment = chain.open_segment
        members = [member.broker for member in segment.members]
        others = [name for name in sorted(self._scene.cluster.brokers) if name not in members]
        fenced = self._scene.cluster.brokers[members[-1]]
        switcher = self._rng.choice(others)
        self._tell(f"{switcher} switches segment {segment.no} by {fenced.name} alone, which restarts")
        self._hold([(switcher, members[0]), (members[0], switcher)], breaks=False)
        self._ask(switcher, lambda request, until: ev.ResolveProducer(request, partition, segment.no, until))
        after_us = self._rng.randint(4_000, 40_000)
        self._schedule.after(after_us, self._island, members, others, True)
        self._schedule.after(after_us, self.crash, fenced)

    def inject_prepared_restart(self) -> None:
        """A member that is prepared to be the next master restarts before it is master. Later it reaches only its slave
        and clients.
        """
        partition = self._partition()
        chain, _ = self._scene.cluster.coordinator.records.chain(partition)
        if chain is None:
            return
        no, group = chain.open_segment.no, chain.open_segment.broker_group
        nexts = sorted(name for name, broker in self._scene.cluster.brokers.items() if broker.group != group)[:2]
        others = [name for name in sorted(self._scene.cluster.brokers) if name not in nexts]
        turn = (partition + no) % len(nexts)
        master, slave = self._scene.cluster.brokers[nexts[turn]], self._scene.cluster.brokers[nexts[turn - 1]]
        self._tell(f"{others[0]} switches away from segment {no}; {master.name} restarts while {slave.name} is slow")
        slave.slow_until_us = self._schedule.now_us + 100_000

        def complain(of: int) -> None:
            self._ask(others[0], lambda request, until: ev.ResolveProducer(request, partition, of, until))

        complain(no)
        self._schedule.after(self._rng.randint(5_000, 25_000), self.crash, master)
        apart_us = self._rng.randint(200_000, 300_000)
        self._schedule.after(apart_us, self._island, nexts, others, True)
        for later_us in (10_000, 150_000, 300_000):
            self._schedule.after(apart_us + later_us, complain, no + 1)

    def inject_plan(self) -> None:
        """A planned switch, asked of some broker."""
        partition = self._partition()
        name = self._victim().name
        self._tell(f"a planned switch at {name}")
        self._ask(name, lambda request, _until: ev.PlanSwitch(request, partition), "planned switch")

    def inject_switch_away(self) -> None:
        """The controller tells a broker that the open segment's group has no live member, rightly or not."""
        partition = self._partition()
        chain, _ = self._scene.cluster.coordinator.records.chain(partition)
        if chain is None:
            return
        no = chain.open_segment.no
        name = self._rng.choice(sorted(self._scene.cluster.brokers))
        self._tell(f"{name} is told to switch away from segment {no}")
        self._ask(name, lambda _request, _until: ev.SwitchAwayFrom(partition, no))
