"""What the controller does about balance: it measures every `interval_s`, or if an administrator asks, and moves open
segments.

`core.control.balance` decides what should move. This module asks the masters what they took, finds out which broker
groups are steady, and makes the moves. It makes one planned switch at a time, at most `moves_per_s`. Before each move
it checks that the plan still fits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog
from seriatim_api.errors import CorruptionError, SeriatimError
from seriatim_api.ids import MemberId, PartitionId

from ...core.control import balance
from ...core.control.balance import BrokerGroupShare, Limits, Move, OpenSegment
from ...core.values.chain import Chain
from ...core.values.effects import Resolved
from ...core.values.events import PlanSwitch
from ...core.values.placement import Intent
from ...counters.broker import Counters
from ...interfaces.clock import Clock
from ...interfaces.coordinator import Coordinator, Get
from ..coordinator.keys import Keys
from ..coordinator.pages import read_all_whole
from ..coordinator.records import parse_chain
from ..driver.coordinator_requests import READS_PER_TXN
from ..driver.driver import Driver, ask
from ..driver.traffic import STALE_S, Measured, MeasureTraffic
from ..membership.directory import Directory

MEASURE_DEADLINE_S = 2.0
FRESH_S = 2.0
"""If the last question is too long ago (`STALE_S`), masters are asked twice, and this is the time between."""

MOVE_DEADLINE_S = 3.0
"""A planned switch takes some milliseconds, or is dropped after twice `planned_switch_ms`."""

FAILURES_MAX = 3
"""If this many moves fail in a row, the rest of the plan is given up. The next scan may know what is wrong."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BalancerSettings:
    """When and how fast open segments are moved.

    Attributes:
        interval_s: Seconds between two scans. 0: only when an administrator asks.
        moves_per_s: Planned switches a second, at most.
        threshold: Moves begin when the highest load is more than this above the mean, as a ratio. They continue until
            it is at most half of this above the mean.
        floor_bytes_per_s: If the mean load of a broker group is below this, nothing is moved.
        steady_s: A broker group gives and takes open segments only if none of its members came, went or restarted
            within this time. A partition is moved only if its segment has been open for at least this time.
        move_again_s: A partition that was moved is not moved again within this time.
    """

    interval_s: float = 30.0
    moves_per_s: float = 2.0
    threshold: float = 0.2
    floor_bytes_per_s: float = 1 << 20
    steady_s: float = 30.0
    move_again_s: float = 300.0

    def __post_init__(self) -> None:
        assert self.moves_per_s > 0
        assert self.threshold > 0


@dataclass(frozen=True, slots=True)
class Look:
    """What a scan found: open segments with traffic, the broker groups that take part, the moves, and if none, why."""

    open_segments: tuple[OpenSegment, ...]
    chains: dict[PartitionId, Chain]
    shares: tuple[BrokerGroupShare, ...]
    moves: tuple[Move, ...]
    reason: str

    @property
    def after(self) -> list[OpenSegment]:
        """Where the open segments are when all moves are made."""
        return balance.after(self.open_segments, self.moves)


@dataclass(eq=False)
class Balancer:
    """A duty of the elected broker, until cancelled. `ask` answers an administrator."""

    _coordinator: Coordinator
    _keys: Keys
    _driver: Driver
    _directory: Directory
    _is_there: Callable[[MemberId], bool]
    _measure: MeasureTraffic
    _clock: Clock
    _settings: BalancerSettings
    _counters: Counters

    def __post_init__(self) -> None:
        self._known: dict[str, tuple[object, int]] = {}  # group -> what it is made of, and since when
        self._moved_us: dict[PartitionId, int] = {}
        self._asked: asyncio.Event = asyncio.Event()
        self._wanted: tuple[Move, ...] = ()
        self._is_moving = False
        self.excess = 0.0
        self._directory.on_change(self._note_broker_groups)

    # ---- the duty ----

    async def run(self) -> None:
        """Scan every `interval_s`, and carry out the moves that follow, or those that an administrator asked for."""
        self._known.clear()  # this broker has not seen what happened before it was elected
        self._note_broker_groups()
        self._asked.clear()
        while True:
            moves = await self._next_moves()
            if moves:
                self._is_moving = True
                try:
                    await self._carry_out(moves)
                finally:
                    self._is_moving = False

    async def _next_moves(self) -> tuple[Move, ...]:
        try:
            async with asyncio.timeout(self._settings.interval_s or None):
                await self._asked.wait()
        except TimeoutError:
            threshold = self._settings.threshold
            return (await self.look(Limits(threshold, threshold / 2, self._settings.floor_bytes_per_s))).moves
        self._asked.clear()
        moves, self._wanted = self._wanted, ()
        return moves

    async def ask(self, *, run: bool) -> Look:
        """The plan for an administrator. It moves open segments if the excess is above `threshold` / 2. With `run`,
        begin."""
        if self._is_moving or self._asked.is_set():
            return Look((), {}, (), (), "open segments are being moved at this moment: look again in a minute")
        threshold = self._settings.threshold
        found = await self.look(Limits(threshold / 2, threshold / 2, self._settings.floor_bytes_per_s))
        if run and found.moves:
            self._wanted = found.moves
            self._asked.set()
        return found

    # ---- looking ----

    async def look(self, limits: Limits) -> Look:
        """Ask the masters what they take, and plan."""
        shares, reasons = self._steady_broker_groups()
        measured = await self._measure_all(shares)
        silent = [share for share in shares if any(broker not in measured for broker in share.brokers)]
        reasons += [f"{share.name}: a member did not say what it takes" for share in silent]
        shares = [share for share in shares if share not in silent]
        open_segments = _open_segments(shares, measured)
        barred = self._barred()
        if not balance.plan(open_segments, shares, limits, barred):
            self._note_excess(open_segments, shares)
            return Look(
                tuple(open_segments), {}, tuple(shares), (), self._why_nothing(open_segments, shares, limits, reasons)
            )
        chains = await self._chains([open_segment.partition for open_segment in open_segments])
        open_segments = _open_segments_of_chains(open_segments, chains, shares)
        self._note_excess(open_segments, shares)
        moves = balance.plan(open_segments, shares, limits, barred)
        reason = "" if moves else self._why_nothing(open_segments, shares, limits, reasons)
        return Look(tuple(open_segments), chains, tuple(shares), tuple(moves), reason)

    def _note_broker_groups(self) -> None:
        """Note which broker groups changed, and when."""
        now_us = self._clock.monotonic_us()
        groups = self._directory.broker_groups()
        for name, members in groups.items():
            made_of = tuple((str(self._directory.member_run_of(m.broker)), self._is_there(m)) for m in members)
            if self._known.get(name, ((), 0))[0] != made_of:
                self._known[name] = (made_of, now_us)
        for name in self._known.keys() - groups.keys():
            del self._known[name]

    def _steady_broker_groups(self) -> tuple[list[BrokerGroupShare], list[str]]:
        """The broker groups that may give and take, and why the others may not."""
        self._note_broker_groups()
        now_us = self._clock.monotonic_us()
        shares: list[BrokerGroupShare] = []
        reasons: list[str] = []
        for name, members in sorted(self._directory.broker_groups().items()):
            spec = self._directory.spec(name)
            steady_s = (now_us - self._known[name][1]) / 1e6
            if spec.intent is not Intent.ACTIVE:
                reasons.append(f"{name} is {spec.intent.value}")
            elif len(members) < 2 or not all(map(self._is_there, members)):
                reasons.append(f"{name} is not complete")
            elif steady_s < self._settings.steady_s:
                reasons.append(f"{name} changed {steady_s:.0f} s ago: left alone for {self._settings.steady_s:g} s")
            else:
                shares.append(BrokerGroupShare(name, tuple(member.broker for member in members), spec.weight))
        return shares, reasons

    async def _measure_all(self, shares: Iterable[BrokerGroupShare]) -> dict[str, Measured]:
        brokers = [broker for share in shares for broker in share.brokers]
        measured = await self._measure_once(brokers)
        if any(found.seconds > STALE_S for found in measured.values()):
            await asyncio.sleep(FRESH_S)
            measured = await self._measure_once(brokers)
        return measured

    async def _measure_once(self, brokers: list[str]) -> dict[str, Measured]:
        async def of_one(broker: str) -> Measured | None:
            try:
                return await self._measure(broker, MEASURE_DEADLINE_S)
            except SeriatimError as exc:
                _log.info("traffic_not_told", broker=broker, error=str(exc))
                return None

        answers = await asyncio.gather(*map(of_one, brokers))
        return {broker: answer for broker, answer in zip(brokers, answers, strict=True) if answer is not None}

    def _barred(self) -> set[PartitionId]:
        """The partitions that were moved within `move_again_s`."""
        before_us = self._clock.monotonic_us() - self._settings.move_again_s * 1e6
        self._moved_us = {partition: at_us for partition, at_us in self._moved_us.items() if at_us > before_us}
        return set(self._moved_us)

    async def _chains(self, partitions: list[PartitionId]) -> dict[PartitionId, Chain]:
        """Where the open segments are, by the coordinator. Partitions that cannot be read are left out."""
        chains: dict[PartitionId, Chain] = {}
        for start in range(0, len(partitions), READS_PER_TXN):
            gets = [Get(self._keys.chain(partition)) for partition in partitions[start : start + READS_PER_TXN]]
            result = await self._coordinator.txn((), gets)
            items = [response.item for response in result.responses if response.item is not None]
            for whole in await read_all_whole(self._coordinator, self._keys, items):
                try:
                    chain = parse_chain(whole.item.value, whole.pages)
                except CorruptionError as exc:
                    _log.error("chain_unreadable", key=whole.item.key, error=str(exc))
                    continue
                chains[chain.partition] = chain
        return chains

    def _note_excess(self, open_segments: list[OpenSegment], shares: list[BrokerGroupShare]) -> None:
        loads = balance.broker_group_loads(open_segments, {share.name: share for share in shares})
        weights = sum(share.weight for share in shares)
        mean = sum(open_segment.load for open_segment in open_segments) / weights if weights else 0.0
        self.excess = balance.excess(loads, mean)

    def _why_nothing(
        self, open_segments: list[OpenSegment], shares: list[BrokerGroupShare], limits: Limits, reasons: list[str]
    ) -> str:
        if reasons and len(shares) < 2:
            return "; ".join(reasons)
        weights = sum(share.weight for share in shares)
        if not open_segments or (
            weights and sum(open_segment.load for open_segment in open_segments) / weights <= limits.floor
        ):
            return "; ".join(["there is too little traffic to be worth a move", *reasons])
        found = "all is even enough" if self.excess <= limits.begin else "no move would help"
        return "; ".join([f"{found}: the busiest broker group is {self.excess:.0%} above the mean", *reasons])

    # ---- moving ----

    async def _carry_out(self, moves: Iterable[Move]) -> None:
        """Make one move after another, at most `moves_per_s`. Moves that do not fit any more are left out."""
        failures = 0
        for move in moves:
            began_us = self._clock.monotonic_us()
            result = await self._make(move)
            self._counters.add(self._counters.balance_moves, result)
            failures = failures + 1 if result == "failed" else 0
            if failures >= FAILURES_MAX:
                _log.warning("balance_given_up", failures=failures)
                return
            if result != "stale":
                left_s = 1 / self._settings.moves_per_s - (self._clock.monotonic_us() - began_us) / 1e6
                await asyncio.sleep(max(left_s, 0.0))

    async def _make(self, move: Move) -> str:
        """How the move ended: `done`, `failed`, or `stale` if the plan does not fit any more."""
        partition = move.open_segment.partition
        chain = await self._still_meant(move)
        if chain is None:
            return "stale"
        self._moved_us[partition] = self._clock.monotonic_us()  # also if it fails: it is not tried again at once
        reply = await self._switch(partition, move)
        if reply is None or reply.error is not None:
            _log.info("head_not_moved", partition=chain.name, to=move.to_master, error=str(reply and reply.error))
            return "failed"
        _log.info("head_moved", partition=chain.name, source=move.open_segment.master, to=move.to_master)
        return "done"

    async def _still_meant(self, move: Move) -> Chain | None:
        """The chain, if both groups are steady, and the open segment is where it was and older than `steady_s`."""
        steady = {share.name for share in self._steady_broker_groups()[0]}
        if not {move.open_segment.broker_group, move.to_broker_group} <= steady:
            return None
        chain = (await self._chains([move.open_segment.partition])).get(move.open_segment.partition)
        if chain is None:
            return None
        segment = chain.open_segment
        open_s = (self._clock.wall_ms() - segment.opened_at_ms) / 1e3
        is_meant = segment.master.broker == move.open_segment.master and open_s >= self._settings.steady_s
        return chain if is_meant else None

    async def _switch(self, partition: PartitionId, move: Move) -> Resolved | None:
        try:
            reply = await ask(
                self._driver,
                lambda request: PlanSwitch(request, partition, move.to_broker_group, move.to_master),
                MOVE_DEADLINE_S,
            )
        except TimeoutError:
            return None
        assert isinstance(reply, Resolved)
        return reply


def _load(batches: int, size_bytes: int, seconds: float) -> float:
    return (size_bytes + balance.BATCH_COST_BYTES * batches) / max(seconds, 1.0)


def _open_segments(shares: Iterable[BrokerGroupShare], measured: dict[str, Measured]) -> list[OpenSegment]:
    """As the masters counted. If two counted a partition, it moved: its place is the one that counted more."""
    loads: dict[PartitionId, list[OpenSegment]] = {}
    for share in shares:
        for broker in share.brokers:
            told = measured[broker]
            for partition, (batches, size_bytes) in told.partitions.items():
                open_segment = OpenSegment(partition, share.name, broker, _load(batches, size_bytes, told.seconds))
                loads.setdefault(partition, []).append(open_segment)
    return [
        OpenSegment(partition, most.broker_group, most.master, sum(open_segment.load for open_segment in open_segments))
        for partition, open_segments in loads.items()
        for most in [max(open_segments, key=lambda open_segment: (open_segment.load, open_segment.master))]
    ]


def _open_segments_of_chains(
    open_segments: Iterable[OpenSegment], chains: dict[PartitionId, Chain], shares: Iterable[BrokerGroupShare]
) -> list[OpenSegment]:
    """As the chains have it. Members that were replaced, or broker groups that were left out, count as no masters."""
    brokers = {share.name: share.brokers for share in shares}
    found: list[OpenSegment] = []
    for open_segment in open_segments:
        chain = chains.get(open_segment.partition)
        if chain is not None:
            segment = chain.open_segment
            if segment.master.broker in brokers.get(segment.broker_group, ()):
                found.append(
                    OpenSegment(open_segment.partition, segment.broker_group, segment.master.broker, open_segment.load)
                )
    return found
