"""Faults of links: between brokers, and between clients and brokers."""

from __future__ import annotations

from .strikes import Strikes

HELD_US = (1_300_000, 6_000_000)
"""For how long a consumer is cut off: longer than its session (`consumers.CONFIG`)."""

CONTROL_LANE, DATA_LANE = 0, 1

LANE_NAMES = ("control", "data")


class LinkFaults(Strikes):
    """The faults of links."""

    def inject_cut(self) -> None:
        """Nothing gets through between two brokers; sometimes a broker is cut off from all others."""
        first, second = self._pair()
        if self._rng.random() < 0.3:
            self._cut([(first, name) for name in sorted(self._scene.cluster.brokers) if name != first], both=True)
        else:
            self._cut([(first, second)], both=True)

    def inject_cut_one_way(self) -> None:
        """What one broker sends to another does not arrive."""
        first, second = self._pair()
        self._cut([(first, second) if self._rng.random() < 0.5 else (second, first)], both=False)

    def inject_break(self) -> None:
        """A connection between two brokers breaks."""
        first, second = self._pair()
        self._tell(f"the link {first} {second} breaks")
        self._scene.cluster.network.break_link(first, second)

    def inject_stalled_lane(self) -> None:
        """One lane of a link carries nothing more, one way or both ways, until the link ends; the other continues."""
        first, second = self._pair()
        lane = self._rng.choice((CONTROL_LANE, DATA_LANE, DATA_LANE))
        paths = [(first, second), (second, first)]
        for source, target in paths if self._rng.random() < 0.5 else [self._rng.choice(paths)]:
            if self._scene.cluster.network.stall_lane(source, target, lane):
                self._tell(f"the {LANE_NAMES[lane]} lane from {source} to {target} is stalled")

    def inject_client_break(self) -> None:
        """Streams of clients break, and perhaps clients cannot reach a broker for some time."""
        self._tell("streams of clients break")
        self._scene.clients.break_some(0.5)
        if self._rng.random() < 0.5:
            name = self._victim().name
            self._tell(f"clients cannot reach {name}")
            self._shut_out(self._scene.clients.cut, [name])

    def inject_lonely(self) -> None:
        """A server is cut off from all brokers, but not from its consumers. Some of these look for another server."""
        chain, _ = self._scene.cluster.coordinator.records.chain(self._partition())
        if chain is None:
            return
        server = self._rng.choice(chain.segments[-2:]).server.broker
        others = [name for name in sorted(self._scene.cluster.brokers) if name != server]
        self._cut([(server, name) for name in others], both=True)
        self._schedule.after(self._rng.randint(0, 100_000), self._scene.clients.break_some, 0.4)

    def inject_two_servers(self) -> None:
        """The server of a sealed segment reaches only consumers. Some of them stay while another member takes over."""
        chain, _ = self._scene.cluster.coordinator.records.chain(self._partition())
        if chain is None or len(chain.segments) < 2:
            return
        server = chain.segments[-2].server.broker
        others = [name for name in sorted(self._scene.cluster.brokers) if name != server]
        self._island([server], others, is_isolated=True)
        for after_us in (300_000, 420_000):  # later than what is taken for silence
            self._schedule.after(after_us, self._scene.clients.break_some, 0.5)

    def inject_held_frames(self) -> None:
        """An active consumer is cut off in silence, perhaps its server ends, another continues; then the cut heals.

        The cut lasts longer than the session of consumers: within it late deliveries count, see docs/adr/0028.
        """
        active = [consumer for consumer in self._scene.population.consumers if consumer.server]
        if not active:
            return
        consumer = self._rng.choice(active)
        self._tell(f"{consumer.name} is cut off, and what is sent to it is held")
        consumer.cut_off()
        if self._rng.random() < 0.6:
            ends_after_us = self._rng.randint(20_000, 200_000)
            self._schedule.after(ends_after_us, self.crash, self._scene.cluster.brokers[consumer.server])

        def heal() -> None:
            if not self._healing:
                self._tell(f"{consumer.name} gets what was held")
                consumer.reach_again()

        self._schedule.after(self._rng.randint(*HELD_US), heal)

    def inject_island(self) -> None:
        """The members of the open segment reach only each other and their clients."""
        members = self._open_members()
        others = [name for name in sorted(self._scene.cluster.brokers) if name not in members]
        self._island(members, others, self._rng.random() < 0.7)
