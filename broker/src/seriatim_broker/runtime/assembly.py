"""The parts of a broker's runtime, each with the parts that it needs.

`composition` puts them on RocksDB, gRPC and etcd. The simulation puts the same parts on fakes of disk, network and
clock. So the simulator runs the code of production, with the same connections between its parts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import structlog
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import RunId

from ..core.values.events import DiskRoom, WritesRefused
from ..counters.broker import Counters
from ..interfaces.bodies import Bodies
from ..interfaces.clock import Clock
from ..interfaces.coordinator import Coordinator, Put
from ..interfaces.link import Dialer
from ..interfaces.storage import Storage
from .controller.balancer import Balancer, BalancerSettings
from .controller.broker_groups import BrokerGroups
from .controller.caretaker import Caretaker, CaretakerSettings
from .controller.cleanup import Cleanup
from .controller.controller import Controller
from .controller.drainer import Drainer
from .controller.topics import Topics
from .controller.unfinished_publications import UnfinishedPublications
from .coordinator.keys import Keys
from .coordinator.rebuilt_watches import RebuiltWatches
from .coordinator.write_refusals import WriteRefusals
from .driver import retry_cache
from .driver.coordinator_requests import CoordinatorRequests
from .driver.driver import Core, Driver
from .driver.links import Links
from .driver.traffic import Measured, MeasureTraffic, Traffic
from .duties.delayed_counts import DelayedCounts
from .duties.deleted_consumer_groups import DeletedConsumerGroups
from .duties.restart_gate import RestartGate
from .duties.retention import Retention, RetentionSettings
from .duties.stage_floors import StageFloors
from .membership.directory import Directory
from .membership.election import Election
from .membership.lease import LeaseKeeper
from .membership.lost_records import LostRecords, Remember
from .membership.registration import Identity, live_record
from .membership.wall_clocks import TOLD_S
from .membership.watermarks import Watermarks

LIVE_KEY_RETRY_S = 0.2
ROOM_PERIOD_S = 0.5
"""Between two checks of the free space of the disk."""
LIVE_KEY_RETRY_S_MAX = 5.0
"""First and longest pause before the broker writes its live key again. Each pause is twice the one before."""

GROUP_LOOK_S = 0.5
"""Between two checks of the links to the members of the own broker group."""

UNLINKED_S = 5.0
"""A link that has been missing for this long is reported in the live key. This is longer than a live key outlives its
process, so the end of a member is not reported as a missing link."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ground:
    """What a broker's runtime uses of its surroundings.

    Attributes:
        chance: Spreads pauses. Nothing that must hold depends on it.
        die: Called once when a step of the core failed. It must end the process.
        measure: Asks another broker what it took from producers lately.
        remember: Keeps on the disk what was seen of the coordinator.
        bodies: Looks into the bodies of batches.
    """

    storage: Storage
    coordinator: Coordinator
    dialer: Dialer
    clock: Clock
    chance: Random
    counters: Counters
    die: Callable[[BaseException], None]
    measure: MeasureTraffic
    remember: Remember
    bodies: Bodies


class Runtime:
    """A broker without its gRPC servers: everything that a joined process does by itself.

    Args:
        identity: From `membership.registration.join`.
        core: Not started yet.
        peers: By broker name, the address at which this broker reaches it, if that is not the registered one.
        retry_cache_bytes_max: Memory for messages on which consumers failed, and that come again.
        link_peers: As `peers`, for links.
    """

    def __init__(
        self,
        identity: Identity,
        keys: Keys,
        core: Core,
        ground: Ground,
        peers: Mapping[str, str],
        settings: CaretakerSettings,
        balancing: BalancerSettings,
        retention: RetentionSettings,
        retry_cache_bytes_max: int = retry_cache.CACHE_BYTES_MAX,
        link_peers: Mapping[str, str] | None = None,
    ) -> None:
        broker = identity.member.broker
        clock = ground.clock
        self.coordinator = coordinator = RebuiltWatches(ground.coordinator)
        self.identity = identity
        self._keys = keys
        self._storage = ground.storage
        self._known_runs: dict[str, tuple[RunId | None, bool]] = {}  # by broker, and whether it serves
        self._clock = clock
        self._has_met_broker_group = False
        self._unlinked: tuple[str, ...] = ()
        self._live_key_changed = asyncio.Event()
        self.driver = Driver(
            core, ground.storage, clock, ground.counters, ground.die, ground.bodies, retry_cache_bytes_max
        )
        feed, post = self.driver.feed, self.driver.post
        self.directory = Directory(broker, keys, peers, feed, link_peers)
        self.links = Links(
            broker, ground.dialer, self.directory.link_address, feed, post, clock, ground.chance,
            self.directory.is_dismissed, self.driver.fail,
        )  # fmt: skip
        self.lost_records = LostRecords(
            coordinator, keys, identity, post, ground.remember, coordinator.end_watches
        )  # fmt: skip
        self.watermarks = Watermarks(
            coordinator, keys, identity.run_id, lambda: ground.storage.durable_sequence, clock
        )  # fmt: skip
        self.refusals = WriteRefusals(
            coordinator, keys.probe(broker), lambda refused: post(WritesRefused(refused)), clock
        )  # fmt: skip
        counted = lambda outcome: ground.counters.add(ground.counters.coordinator_writes, outcome)  # noqa: E731
        self.work = CoordinatorRequests(
            coordinator, keys, post, self.refusals.refused, counted, self.driver.fail, self.driver.is_overtaken
        )  # fmt: skip
        self.lease = LeaseKeeper(coordinator, clock)
        election = Election(identity, coordinator, keys, self.directory, self.lease)
        topics = Topics(coordinator, keys, self.driver, self.directory, election, clock)
        linked = self.links.is_up
        caretaker = Caretaker(
            identity, coordinator, keys, self.driver, self.directory, election, linked, settings, clock
        )
        drainer = Drainer(
            coordinator, keys, self.driver, self.directory, caretaker.is_there, clock, settings.min_copies
        )
        self.traffic = Traffic(clock)
        self._measure_other = ground.measure
        balancer = Balancer(
            coordinator, keys, self.driver, self.directory, caretaker.is_there, self._measure, clock, balancing,
            ground.counters,
        )  # fmt: skip
        cleanup = Cleanup(coordinator, keys, election, clock, settings)
        self.unfinished_publications = unfinished = UnfinishedPublications(coordinator, keys, clock)
        self.controller = Controller(election, topics, caretaker, drainer, balancer, cleanup, unfinished)
        self.groups = BrokerGroups(coordinator, keys, caretaker.is_there, settings.min_copies)
        self._deleted_consumer_groups = DeletedConsumerGroups(coordinator, keys, self.driver, settings.forget_s)
        self.stage_floors = StageFloors(coordinator, keys)
        self.retention = Retention(
            coordinator, keys, self.driver, ground.storage, clock, retention, self.stage_floors, self.lost_records
        )  # fmt: skip
        self.delayed = DelayedCounts(core, self.driver, ground.storage, clock, broker)
        self.is_there, self.copies_wanted = caretaker.is_there, caretaker.copies_wanted
        self.gate = RestartGate(coordinator, keys, self.driver, self.directory)

    async def _measure(self, broker: str, deadline_s: float) -> Measured:
        if broker == self.identity.member.broker:
            return self.traffic.measure()
        return await self._measure_other(broker, deadline_s)

    def start(self) -> None:
        """Let the core begin."""
        self.driver.start(self.links, self.work)

    def duties(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """All tasks that run beside the core until the process ends, each with its name."""
        return [
            ("directory", self.directory.run(self.coordinator)),
            ("lease", self.lease.run()),
            ("live key", self._keep_live_key()),
            ("disk room", self._watch_room()),
            ("links of the group", self._watch_broker_group()),
            ("refusals", self.refusals.run()),
            ("lost records", self.lost_records.run()),
            ("watermarks", self.watermarks.run()),
            ("controller", self.controller.run()),
            ("deleted groups", self._deleted_consumer_groups.run()),
            ("retention", self.retention.run()),
            ("counts of delayed messages", self.delayed.run()),
        ]

    async def _watch_room(self) -> None:
        """Tell the core when the disk has reached its reserve, and when there is room again."""
        is_full = False
        while True:
            if self._storage.is_disk_full() != is_full:
                is_full = not is_full
                self.driver.feed(DiskRoom(is_full))
            await asyncio.sleep(ROOM_PERIOD_S)

    def missing_link(self) -> str:
        """A live member of the own broker group to which this member run was never linked; empty if there is none.

        It stays empty once all of them were linked, or once none was live. A link that breaks later is not reported
        here: it does not say which side is at fault, and the partitions that need it move by themselves.
        """
        if not self._has_met_broker_group:
            missing = [run for run in self.directory.live_partners() if not self.links.is_linked_to(run)]
            if missing:
                return missing[0].member.broker
            self._has_met_broker_group = self.directory.loaded.is_set()
        return ""

    async def _watch_broker_group(self) -> None:
        """Keep links to the own broker group, and report in the live key which of them have been missing for long.

        Rule `unlinked-member` (I12): a member to which no other member has a link cannot take a copy of anything. So
        its broker group is not complete, whatever its process says. If the two share no segment, only this loop dials
        it.
        """
        since_us: dict[RunId, int] = {}
        while True:
            await asyncio.sleep(GROUP_LOOK_S)
            now_us = self._clock.monotonic_us()
            self.missing_link()
            missing = []
            for run in self.directory.live_partners():
                self.links.connect(run.member.broker)
                if not self.links.is_linked_to(run):
                    missing.append(run)
            since_us = {run: since_us.get(run, now_us) for run in missing}
            unlinked = tuple(run.member.broker for run in missing if now_us - since_us[run] >= UNLINKED_S * 1e6)
            if unlinked != self._unlinked:
                _log.info("unlinked_members", members=list(unlinked))
                self._unlinked = unlinked
                self._live_key_changed.set()

    async def _keep_live_key(self) -> None:
        """Put the live key under each new lease, and again when its content has changed, with this broker's clock."""
        changed = self._live_key_changed
        self.lease.on_change(lambda _lease: changed.set())
        self.directory.on_change(self._hasten_links)
        key = self._keys.live(self.identity.member.broker)
        pause_s = LIVE_KEY_RETRY_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TOLD_S):
                    await changed.wait()
            changed.clear()
            lease = self.lease.id
            if not lease:
                continue
            try:
                value = live_record(self.identity, self._clock.wall_ms(), self._unlinked)
                await self.coordinator.txn((), [Put(key, value, lease)], deadline_s=1.0)
            except SeriatimError as exc:
                _log.warning("live_key_not_written", error=str(exc))
                changed.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LIVE_KEY_RETRY_S_MAX)
            else:
                pause_s = LIVE_KEY_RETRY_S

    def _hasten_links(self) -> None:
        """Connect at once to brokers that have a new member run, or have begun to serve in it."""
        for broker in self.directory.members:
            known = (self.directory.member_run_of(broker), self.directory.is_live(broker))
            before = self._known_runs.get(broker)
            self._known_runs[broker] = known
            has_ended = before is not None and known == (before[0], False)
            if known == before or has_ended or broker == self.identity.member.broker or self.links.is_up(broker):
                continue
            self.links.hasten(broker)
