"""What the controller does about members: it admits them, switches away from lost broker groups, and has copies made.

It scans chains when something happened: a broker group was lost, or a member was away for `heal_after_s`. With broker
groups of three and more it also scans them on a timer (`heal_pace`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import structlog
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.v1 import records_pb2

from ...core.control.controller import (
    MemberView,
    holders,
    lost_broker_groups,
    plan_growth,
    plan_heals,
    plan_release,
    switch_away,
    wants_copies,
)
from ...core.values.chain import Chain
from ...core.values.placement import Intent
from ...interfaces.clock import Clock
from ...interfaces.coordinator import Coordinator, Put, mod_revision_is
from ..coordinator.chain_list import all_chains
from ..coordinator.keys import Keys
from ..coordinator.records import member_from_record
from ..driver.driver import Driver
from ..membership.directory import Directory
from ..membership.election import Election
from ..membership.registration import Identity
from .heal_pace import HealPace, Lost

HEALS_PER_PASS_MAX = 64
MOVES_PER_PASS_MAX = 64
"""Open segments that get more members in one scan: as many planned switches as go to the coordinator at once."""

HEAL_IDLE_S = 5.0
"""Pause between two checks for members that were away for too long. A new disk is noticed at once."""

ADMITTED_LOOKS = 20
ADMITTED_LOOK_S = 0.1

LIVE_GRACE_S = 1.0
"""A missing live key counts after this time, because the broker may only have lost its lease and write a new one."""

SWITCH_AWAY_AGAIN_S = 2.0
"""While a broker group stays lost, its partitions are scanned again after this time, because a switch may have
failed."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CaretakerSettings:
    """Times of the controller.

    Attributes:
        heal_after_s: If a member was away for this long, its sealed segments are copied to another broker.
        min_copies: Copies that a sealed segment should have at least; with larger broker groups as many as the smallest
            has members.
        deleted_kept_s: How long the cursors of a deleted consumer group, and the tombstones of a deleted topic, stay.
        tidy_s: Seconds between two passes of `cleanup`.
        forget_s: Seconds between two scans of `duties.deleted_consumer_groups`, which every broker makes.
    """

    heal_after_s: float = 600.0
    min_copies: int = 2
    deleted_kept_s: float = 7 * 86400.0
    tidy_s: float = 60.0
    forget_s: float = 600.0


@dataclass(eq=False)
class Caretaker:
    """Two duties of the elected broker, each until cancelled: `watch_members` and `heal`."""

    _identity: Identity
    _coordinator: Coordinator
    _keys: Keys
    _driver: Driver
    _directory: Directory
    _election: Election
    _is_linked: Callable[[str], bool]
    _settings: CaretakerSettings
    _clock: Clock

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()
        self._heal_changed = asyncio.Event()
        self._away_since: dict[MemberId, int] = {}
        self._pace = HealPace()
        self._moved_up_to = PartitionId(0)  # the last one that the last scan moved, if it left some out
        self._directory.on_change(self._changed.set)
        self._directory.on_change(self._heal_changed.set)

    async def watch_members(self) -> None:
        """Admit brokers that registered, and switch away from broker groups that are lost."""
        while True:
            self._changed.clear()
            await self._admit()
            pause_s = await self._switch_away_from_lost_broker_groups()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause_s)

    async def _admit(self) -> None:
        for broker, record in sorted(self._directory.members.items()):
            if record.admitted or not record.member.incarnation:
                continue
            key = self._keys.member(broker)
            item = await self._coordinator.get(key)
            if item is None:
                continue
            written = records_pb2.MemberRecord.FromString(item.value)
            if written.admitted:
                continue
            written.admitted = True
            result = await self._election.txn(
                [mod_revision_is(key, item.mod_revision)], [Put(key, written.SerializeToString())]
            )
            if result.succeeded:
                _log.info("admitted", member=str(member_from_record(written.member)), group=written.group)

    def is_there(self, member: MemberId) -> bool:
        """Whether a member is admitted and runs, as far as this broker knows, and its run is not certified dead."""
        run = self._directory.member_run_of(member.broker)
        is_certified = run is not None and run in self._directory.certified
        return self._directory.is_admitted(member) and self._lives(member.broker) and not is_certified

    def _lives(self, broker: str) -> bool:
        return broker == self._identity.member.broker or self._directory.is_live(broker) or self._is_linked(broker)

    def _views(self) -> list[MemberView]:
        now_us = self._clock.monotonic_us()
        views: list[MemberView] = []
        for broker, record in self._directory.members.items():
            member = member_from_record(record.member)
            run = self._directory.member_run_of(broker)
            certified = run is not None and run in self._directory.certified
            lives = self._lives(broker)
            if lives and not certified:
                self._away_since.pop(member, None)
            away_us = now_us - self._away_since.setdefault(member, now_us) if certified or not lives else 0
            views.append(
                MemberView(member, record.group, record.admitted, lives or away_us < LIVE_GRACE_S * 1e6, certified)
            )
        return views

    async def _switch_away_from_lost_broker_groups(self) -> float | None:
        """Returns the seconds until the next scan; None: no scan until something changes."""
        views = self._views()
        lost = lost_broker_groups(views)
        if lost:
            count = 0
            async for chain in self._chains():
                event = switch_away(chain, lost)
                if event is not None:
                    count += 1
                    self._driver.feed(event)
            if count:
                _log.warning("groups_lost", groups=sorted(lost), partitions=count)
                return SWITCH_AWAY_AGAIN_S
        is_waiting = any(view.member in self._away_since and view.is_live and not view.is_certified for view in views)
        return LIVE_GRACE_S / 4 if is_waiting else None

    # ---- healing ----

    async def heal(self) -> None:
        """Have segments copied that lack copies: a member was away for `heal_after_s`, lost its slot, or came back."""
        while True:
            await self._admit_all()  # first, so that the copies go to the new disk in the slot of the lost one
            running = self._running()
            lost = Lost(self._dead(), self._registered())
            began_us = self._clock.monotonic_us()
            if self._pace.is_due(began_us, lost, running, grows=self.copies_wanted() > self._settings.min_copies):
                wanted = await self._heal_pass(lost.dead, lost.registered)
                self._pace.note(began_us, self._clock.monotonic_us(), lost, running, wanted)
            pause_s = self._pace.pause_us(self._clock.monotonic_us()) / 1e6
            pause_s = min(
                pause_s if pause_s > 0 else HEAL_IDLE_S, HEAL_IDLE_S, max(self._settings.heal_after_s / 4, 0.05)
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._until_registered(lost.registered), pause_s)

    async def _admit_all(self) -> None:
        """Admit brokers that registered, and wait up to 2 s until this broker knows of it too."""
        for _ in range(ADMITTED_LOOKS):
            await self._admit()
            if all(record.admitted or not record.member.incarnation for record in self._directory.members.values()):
                return
            await asyncio.sleep(ADMITTED_LOOK_S)

    async def _until_registered(self, known: frozenset[MemberId]) -> None:
        """Wait until a disk is registered that was not, or one is no longer."""
        while self._registered() == known:
            self._heal_changed.clear()
            await self._heal_changed.wait()

    def _registered(self) -> frozenset[MemberId]:
        return frozenset(member_from_record(record.member) for record in self._directory.members.values())

    def _dead(self) -> frozenset[MemberId]:
        """Members that were away for longer than `heal_after_s`."""
        until_us = self._clock.monotonic_us() - self._settings.heal_after_s * 1e6
        return frozenset(member for member, since_us in self._away_since.items() if since_us <= until_us)

    def copies_wanted(self) -> int:
        """How many copies segments should have."""
        return self._directory.copies_wanted(self._settings.min_copies)

    def _running(self) -> frozenset[MemberId]:
        return frozenset(view.member for view in self._views() if view.is_live and not view.is_certified)

    async def _heal_pass(self, dead: frozenset[MemberId], registered: frozenset[MemberId]) -> int:
        """Begin up to 64 copies. Returns how many segments need one, now or when their length is known.

        A disk that lost its slot to another one never comes back, so it counts as dead at once.
        """
        live: dict[str, list[MemberId]] = {}
        expected: dict[str, list[MemberId]] = {}
        for view in self._views():
            if view.admitted and view.is_live and not view.is_certified:
                live.setdefault(view.broker_group, []).append(view.member)
            if view.admitted and view.member not in dead:
                expected.setdefault(view.broker_group, []).append(view.member)
        live, expected = self._staying(live), self._staying(expected)
        cut_off = {broker for broker in self._directory.members if self._directory.unlinked(broker)}
        copies, min_copies = self.copies_wanted(), self._settings.min_copies
        begun = released = moved = wanted = 0
        after, self._moved_up_to = self._moved_up_to, PartitionId(0)  # some may never move, and others wait for a turn
        async for chain in self._chains():
            replaced = {member for segment in chain.segments for member in holders(segment)} - registered
            gone = dead | replaced
            # Segments that cannot be copied yet count too: nothing else shows that one was sealed or a member is back.
            wanted += sum(wants_copies(segment, gone, copies) for segment in chain.segments)
            move = plan_growth(chain, live, copies, cut_off)
            if move is not None and moved < MOVES_PER_PASS_MAX and chain.partition > after:
                moved, self._moved_up_to = moved + 1, chain.partition
                self._driver.feed(move)
            for heal in plan_heals(chain, gone, live, expected, copies=copies, min_copies=min_copies):
                begun += 1
                if begun <= HEALS_PER_PASS_MAX:
                    self._driver.feed(heal)
            if replaced:
                release = plan_release(chain, replaced.__contains__, self.is_there, min_copies=min_copies)
                if release is not None:
                    wanted += 1
                    released += 1
                    if released <= HEALS_PER_PASS_MAX:
                        self._driver.feed(release)
        if moved < MOVES_PER_PASS_MAX:
            self._moved_up_to = PartitionId(0)
        if begun:
            _log.info("healing", segments=begun, away=sorted(map(str, dead)))
        return wanted

    def _staying(self, members: dict[str, list[MemberId]]) -> dict[str, list[MemberId]]:
        """Without those of drained broker groups, unless all are drained."""
        found = {
            group: members[group] for group in members if self._directory.spec(group).intent is not Intent.DRAINING
        }
        return found or members

    def _chains(self) -> AsyncIterator[Chain]:
        return all_chains(self._coordinator, self._keys)
