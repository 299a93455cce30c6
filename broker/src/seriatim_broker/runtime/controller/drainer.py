"""What the controller does for broker groups that are cordoned or drained: open segments leave, then copies.

It scans chains only while a broker group is not active. A member that is asked to move an open segment, or to leave a
record, checks by itself whether it may (`core.control.drain`). It sends no answer: the next scan shows the result. A
step that had no effect is asked for again after 1, 2, 4 ... 15 s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog
from seriatim_api.ids import MemberId

from ...core.control.controller import plan_copies_elsewhere, plan_release
from ...core.values.chain import Chain
from ...core.values.events import Heal, MoveOpenSegment, Release
from ...core.values.placement import Intent
from ...interfaces.clock import Clock
from ...interfaces.coordinator import Coordinator
from ..coordinator.chain_list import all_chains
from ..coordinator.keys import Keys
from ..driver.driver import Driver
from ..membership.directory import Directory
from .broker_groups import broker_group_in

MOVES_PER_PASS_MAX = 64
"""Moves that are requested in one scan: as many planned switches as go to the coordinator at once."""

COPIES_PER_PASS_MAX = 64
PASS_S = 0.5
"""Pause between two scans while something is left to do."""

IDLE_PASS_S = 10.0
"""Between two scans when all is done. A failover may have put an open segment on a cordoned broker group if there was
no other one."""

RETRY_US = 1_000_000
RETRY_US_MAX = 15_000_000

_log = structlog.get_logger(__name__)

_Step = MoveOpenSegment | Heal | Release


@dataclass(eq=False)
class Drainer:
    """A duty of the elected broker, until cancelled."""

    _coordinator: Coordinator
    _keys: Keys
    _driver: Driver
    _directory: Directory
    _is_there: Callable[[MemberId], bool]
    _clock: Clock
    _min_copies: int

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()
        self._asked: dict[_Step, tuple[int, int]] = {}  # when it may be asked again, and the pause after that
        self._directory.on_change(self._changed.set)

    async def run(self) -> None:
        """Scan whenever something changed, and again while something is left to do."""
        while True:
            self._changed.clear()
            if not self._closed():
                self._asked.clear()
                await self._changed.wait()
                continue
            began_us = self._clock.monotonic_us()
            left = await self._pass()
            took_s = (self._clock.monotonic_us() - began_us) / 1e6
            if left:
                await asyncio.sleep(max(PASS_S, 2 * took_s))
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), IDLE_PASS_S)

    def _closed(self) -> dict[str, Intent]:
        """The broker groups that should have no open segments."""
        specs = self._directory.specs
        return {group: spec.intent for group, spec in specs.items() if spec.intent is not Intent.ACTIVE}

    async def _pass(self) -> int:
        """Ask for the steps that are due. Returns how many are left to do."""
        closed = self._closed()
        drained = {group for group, intent in closed.items() if intent is Intent.DRAINING}
        live = {
            group: [member for member in members if self._is_there(member)]
            for group, members in self._directory.broker_groups().items()
            if group not in closed
        }
        left = moves = copies = 0
        before, self._asked = self._asked, {}
        async for chain in all_chains(self._coordinator, self._keys):
            for step in self._steps(chain, closed, drained, live):
                left += 1
                if step in before:
                    self._asked[step] = before[step]
                is_move = isinstance(step, MoveOpenSegment)
                has_room = moves < MOVES_PER_PASS_MAX if is_move else copies < COPIES_PER_PASS_MAX
                if has_room and self._is_due(step):
                    moves, copies = moves + is_move, copies + (not is_move)
                    self._driver.feed(step)
        if moves or copies:
            _log.info("groups_left", groups=sorted(closed), heads=moves, copies=copies, left=left)
        return left

    def _steps(
        self, chain: Chain, closed: dict[str, Intent], drained: set[str], live: dict[str, list[MemberId]]
    ) -> Iterator[_Step]:
        segment = chain.open_segment
        if segment.broker_group in closed and any(live.values()):
            yield MoveOpenSegment(chain.partition, segment.no, segment.master)
        if not drained:
            return

        def is_leaving(member: MemberId) -> bool:
            return self._broker_group_of(member) in drained

        # Rules `leaves-when-one-stays` and `leaves-when-listed` (LEAVE). The server checks them again before it writes
        # (`core.control.drain`). Without them: 1. Of the members that stay, one has all of the segment, and the other
        # one is listed and still copying. 2. The leaving members leave the record. 3. The disk with the only complete
        # copy is lost, and acknowledged messages with it.
        copies = self._directory.copies_wanted(self._min_copies)
        release = plan_release(chain, is_leaving, self._is_there, min_copies=copies)
        if release is not None:
            yield release
        yield from plan_copies_elsewhere(chain, is_leaving, live, min_copies=copies)

    def _broker_group_of(self, member: MemberId) -> str:
        record = self._directory.members.get(member.broker)
        return record.group if record is not None else broker_group_in(member.broker)

    def _is_due(self, step: _Step) -> bool:
        """Whether to ask (again). The pause doubles each time, from 1 s to 15 s."""
        now_us = self._clock.monotonic_us()
        due_us, pause_us = self._asked.get(step, (0, RETRY_US))
        if now_us < due_us:
            return False
        self._asked[step] = (now_us + pause_us, min(2 * pause_us, RETRY_US_MAX))
        return True
