"""Faults that hit servers in the rare moments that decide which member may deliver and what a new server knows.

A fault of several steps lists them in order.
"""

from __future__ import annotations

from collections.abc import Callable

from ..basics.interfaces import Broker
from .strikes import Strikes


class ServerFaults(Strikes):
    """The faults that hit servers."""

    def _server(self) -> tuple[str, list[str]] | None:
        """The server of a sealed segment that a group reads, and the other eligible members, as names of brokers."""
        partition = self._partition()
        chain, _ = self._scene.cluster.coordinator.records.chain(partition)
        if chain is None:
            return None
        read = [no for no in self._scene.judge.seen.cursor_segments(partition) if no < chain.open_segment.no]
        segment = chain.segment(self._rng.choice(read)) if read else None
        if segment is None:
            return None
        return segment.server.broker, [m.broker for m in segment.eligible if m != segment.server]

    def _with_server(self, strike: Callable[[str, list[str]], None], tries: int = 5) -> None:
        """Strike a server that has a successor; if no group reads a sealed segment, the open one is sealed first."""
        if self._healing:
            return
        found = self._server()
        if found is not None and found[1]:
            strike(*found)
        elif tries:
            if found is None:
                self._complain(1)
            self._schedule.after(100_000, self._with_server, strike, tries - 1)

    def _others(self, name: str) -> list[str]:
        return [other for other in sorted(self._scene.cluster.brokers) if other != name]

    def inject_slow_link(self) -> None:
        """Messages to a server take long; its own messages get through. Some of its consumers look for another one."""
        self._with_server(self._slow_link)

    def _slow_link(self, server: str, _others: list[str]) -> None:
        slow_us: dict[tuple[str, str], int] | None = getattr(self._scene.cluster.network, "slow_us", None)
        if slow_us is None or slow_us:
            return
        paths = [(other, server) for other in self._others(server)]
        self._tell(f"what is sent to {server} takes longer and longer")

        def slower(by_us: int) -> None:
            if not self._healing:
                slow_us.update(dict.fromkeys(paths, by_us))

        for step in range(1, 12):  # in steps, because a link on which nothing comes counts as dead
            self._schedule.after(step * 100_000, slower, step * 80_000)
        self._isolate(server, 1_800_000)
        for after_us in range(500_000, 1_200_000, 100_000):
            self._schedule.after(after_us, self._scene.clients.break_some, 0.25)

        def heal() -> None:
            for path in paths:
                slow_us.pop(path, None)

        self._schedule.after(1_800_000, heal)

    def inject_cut_short(self) -> None:
        """All connections of a server break at once and come back later. All of its consumers stay, or most."""
        self._with_server(self._cut_short)

    def _cut_short(self, server: str, _others: list[str]) -> None:
        others = self._others(server)
        self._tell(f"{server} loses all connections to brokers")
        for other in others:
            self._scene.cluster.network.break_link(server, other)
        paths = [pair for other in others for pair in ((server, other), (other, server))]
        self._schedule.after(6_000, self._hold_unless_healed, paths)
        for after_us in (2_000, 10_000, 30_000):
            self._schedule.after(after_us, self._scene.clients.break_some, 0.3)

    def _hold_unless_healed(self, paths: list[tuple[str, str]]) -> None:
        if not self._healing:
            self._hold(paths, breaks=False)

    def inject_slow_reads(self) -> None:
        """A server's disk is slow to be read. Then the server reaches only consumers, of which some stay."""
        self._with_server(self._slow_reads)

    def _slow_reads(self, server: str, _others: list[str]) -> None:
        self._tell(f"the disk of {server} is slow to be read")
        self._scene.cluster.brokers[server].slow_reads_until_us = self._schedule.now_us + 1_000_000
        for other in self._others(server):
            self._schedule.after(self._rng.randint(0, 60_000), self._both_ways, server, other, 1_800_000)
        self._isolate(server, 1_800_000)
        for after_us in (300_000, 340_000, 380_000):
            self._schedule.after(after_us, self._scene.clients.break_some, 0.4)

    def inject_server_falls(self) -> None:
        """A server reaches one of two other members only, and ends; that one takes over, and the same befalls it."""
        self._with_server(self._fall)

    def _fall(self, server: str, others: list[str]) -> None:
        if len(others) < 2:
            self._schedule.after(self._rng.randint(2_000, 40_000), self._crash_named, server)
            return
        last = self._rng.choice(others)
        next_ = next(other for other in others if other != last)
        self._tell(f"{server} does not reach {last}, and ends; then {next_} the same")
        self._one_way(server, last, 400_000)
        ends_us = self._rng.randint(5_000, 60_000)
        self._isolate(last, ends_us + 150_000)  # otherwise it may take over itself
        self._schedule.after(ends_us, self._crash_named, server)
        self._schedule.after(ends_us, self._one_way, next_, last, 400_000)
        self._schedule.after(ends_us + self._rng.randint(40_000, 150_000), self._crash_named, next_)

    def _crash_named(self, name: str) -> None:
        broker: Broker = self._scene.cluster.brokers[name]
        self.crash(broker)

    def inject_late_word(self) -> None:
        """A server that was passed over reaches a member that has just started, before any other broker does.

        1  the server A reaches only its consumers, and another broker, B, takes over
        2  the third, C, ends and starts again; it reaches A alone, and not the coordinator
        3  C is reached by B again and by A no more; B ends, and C may take over
        """
        self._with_server(lambda old, others: self._passed_over(old, others, self._late_word))

    def inject_word_to_server(self) -> None:
        """A server that was passed over reaches the one that replaced it, when that one has just started again.

        1  the server A reaches only its consumers, and another broker, B, takes over
        2  B ends and starts again; it reaches A alone, and not the coordinator
        """
        self._with_server(lambda old, others: self._passed_over(old, others, self._server_hears))

    def _passed_over(self, old: str, _others: list[str], then: Callable[[str], None]) -> None:
        self._tell(f"{old} reaches no broker")
        for other in self._others(old):
            self._both_ways(old, other, 1_200_000)
        self._isolate(old, 1_200_000)
        for after_us in (300_000, 400_000):
            self._schedule.after(after_us, self._scene.clients.break_some, 0.4)
        self._schedule.after(self._rng.randint(600_000, 800_000), then, old)

    def inject_told_first(self) -> None:
        """A server that was passed over hears so from brokers, and cannot ask the coordinator.

        1  the server reaches no broker and not the coordinator; some of its consumers stay
        2  another one takes over, and more changes follow, of which the old one misses too many to hear of them all
        3  brokers reach the old one again, and the coordinator is still out of its reach
        """
        self._with_server(self._told_first)

    def _told_first(self, server: str, _others: list[str]) -> None:
        apart_us = self._rng.randint(500_000, 800_000)
        self._tell(f"{server} reaches no broker or client, and then brokers only")
        for other in self._others(server):
            self._both_ways(server, other, apart_us)
        self._isolate(server, apart_us + 1_500_000)
        for after_us in (300_000, 400_000):
            self._schedule.after(after_us, self._scene.clients.break_some, 0.5)
        for before_us in (50_000, 150_000):
            self._schedule.after(apart_us - before_us, self._complain, 1)

    def _late_word(self, old: str) -> None:
        found = self._server()
        if found is None or self._healing or found[0] == old:
            return
        server, others = found
        if not others:
            return
        other = self._rng.choice(others)
        self._starts_beside(other, old)
        self._schedule.after(180_000, self._apart_again, old, other)
        self._schedule.after(self._rng.randint(230_000, 300_000), self._crash_named, server)

    def _server_hears(self, old: str) -> None:
        found = self._server()
        if found is not None and not self._healing and found[0] != old:
            self._starts_beside(found[0], old)

    def _starts_beside(self, other: str, old: str) -> None:
        """One broker starts again, and reaches only the other one."""
        self._tell(f"{other} starts again, and {old} is the first that it hears")
        self._scene.cluster.network.heal(old, other)
        self._scene.cluster.network.heal(other, old)
        for name in self._others(other):
            if name != old:
                self._both_ways(other, name, 170_000)
        self._isolate(other, 170_000)
        self.crash(self._scene.cluster.brokers[other])

    def _apart_again(self, old: str, other: str) -> None:
        if not self._healing:
            self._both_ways(old, other, 400_000)

    def _both_ways(self, one: str, other: str, for_us: int) -> None:
        """Nothing gets through between two brokers for this long."""
        self._one_way(one, other, for_us)
        self._one_way(other, one, for_us)

    def _one_way(self, source: str, target: str, for_us: int) -> None:
        if self._healing:
            return
        network = self._scene.cluster.network
        network.cut(source, target)

        def heal() -> None:
            if not self._healing:
                network.heal(source, target)

        self._schedule.after(for_us, heal)

    def _isolate(self, name: str, for_us: int) -> None:
        isolated = self._scene.cluster.coordinator.isolated
        isolated[name] = isolated.get(name, 0) + 1

        def heal() -> None:
            isolated[name] = max(0, isolated.get(name, 0) - 1)

        self._schedule.after(for_us, heal)
