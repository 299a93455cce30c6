"""The gate before a restart: it finds the segments of a broker, asks which other members have them, and judges.

A program that stops brokers one by one asks here before each of them, again and again until the answer is yes. Any
broker can answer. The gate changes nothing. A yes comes from all chains. After a no, only the chain that decided it is
read again. So a rolling restart that waits for a copy does not read the whole cluster with each question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from seriatim_api.errors import BadRequestError
from seriatim_api.ids import MemberId, PartitionId

from ...core.control.restarts import Finding, Need, Verdict, decide, judge, needs
from ...core.values.effects import CopiesTold
from ...core.values.events import AskCopies
from ...core.values.messages import CopyReport
from ...interfaces.coordinator import Coordinator
from ..coordinator.chain_list import all_chains, one_chain
from ..coordinator.keys import Keys
from ..driver.driver import Driver, ask
from ..membership.directory import Directory

SEGMENTS_PER_QUESTION = 500
"""Segments in one question to a member. The answer has a few kilobytes."""

QUESTIONS_AT_ONCE = 8
ANSWER_S = 0.3
"""Time for one answer. Then the question is asked again, because the link may have had to be made first."""

LOOK_AGAIN_S = 0.5
"""Time for the partition that decided last. The check of all partitions has the rest, also if a member is silent."""

AGAIN_S = 0.1
"""Pause after an answer that does not decide: an open segment may have moved between the read and the question."""


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """Whether a broker may be stopped now, which finding decided that, and how many segments were checked."""

    verdict: Verdict
    text: str
    finding: Finding | None
    segment_count: int


class RestartGate:
    """Answers about any broker of the cluster."""

    def __init__(self, coordinator: Coordinator, keys: Keys, driver: Driver, directory: Directory) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._driver = driver
        self._directory = directory
        self._held_up: dict[str, PartitionId] = {}  # by broker (there are few): the partition that decided a no

    async def check(self, broker: str, deadline_s: float) -> GateAnswer:
        """Whether the broker may be stopped without leaving anything on one disk only.

        While the partition that decided the last no is still a reason for a no, it decides this answer too,
        also if another program asked then. Verdict and number of segments are those of that partition, and other
        partitions may be worse.

        Raises:
            BadRequestError: There is no such broker.
            SeriatimError: The coordinator does not answer, or a chain cannot be read. Then the stop is not safe.
        """
        run = self._directory.member_run_of(broker)
        if run is None:
            raise BadRequestError(f"there is no broker {broker!r}", broker=broker)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        while True:
            answer = await self._look_again(run.member, until_s) or await self._look(run.member, until_s)
            if answer.verdict is not Verdict.UNKNOWN or loop.time() + AGAIN_S + ANSWER_S > until_s:
                return answer  # too little time is left for another try
            await asyncio.sleep(AGAIN_S)

    async def _look_again(self, member: MemberId, until_s: float) -> GateAnswer | None:
        """The answer of the partition that decided last; None if it is not known to be a reason for a no any more."""
        partition = self._held_up.get(member.broker)
        if partition is None:
            return None
        chain = await one_chain(self._coordinator, self._keys, partition)
        if chain is None:
            return None
        until_s = min(until_s, asyncio.get_running_loop().time() + LOOK_AGAIN_S)
        answer = await self._answer(needs(chain, member), member, until_s)
        return answer if _is_no(answer) else None

    async def _look(self, member: MemberId, until_s: float) -> GateAnswer:
        found: list[Need] = []
        async for chain in all_chains(self._coordinator, self._keys, strict=True):
            found += needs(chain, member)
        answer = await self._answer(found, member, until_s)
        self._held_up.pop(member.broker, None)
        if _is_no(answer) and answer.finding is not None:
            self._held_up[member.broker] = answer.finding.need.partition
        return answer

    async def _answer(self, found: Sequence[Need], member: MemberId, until_s: float) -> GateAnswer:
        reports = await self._ask_all(found, member, until_s)
        findings = [judge(need, reports, self._is_there) for need in found]
        deciding = decide(findings)
        if deciding is None:
            return GateAnswer(Verdict.SAFE, f"no segment needs {member.broker}", None, 0)
        return GateAnswer(deciding.verdict, deciding.text, deciding, len(found))

    def _is_there(self, member: MemberId) -> bool:
        run = self._directory.member_run_of(member.broker)
        return (
            self._directory.is_admitted(member)
            and self._directory.is_live(member.broker)
            and run is not None
            and run not in self._directory.certified
        )

    async def _ask_all(
        self, found: Iterable[Need], without: MemberId, until_s: float
    ) -> dict[tuple[MemberId, PartitionId, int], CopyReport]:
        wanted: dict[MemberId, list[tuple[PartitionId, int]]] = {}
        for need in found:
            for member in need.ask:
                if self._is_there(member):
                    wanted.setdefault(member, []).append((need.partition, need.segment_no))
        reports: dict[tuple[MemberId, PartitionId, int], CopyReport] = {}
        slots = asyncio.Semaphore(QUESTIONS_AT_ONCE)

        async def ask(member: MemberId, segments: Sequence[tuple[PartitionId, int]]) -> None:
            async with slots:
                told = await self._ask(member, without, segments, until_s)
            for (partition, no), report in zip(segments, told, strict=False):
                reports[member, partition, no] = report

        await asyncio.gather(*(ask(member, part) for member, segments in wanted.items() for part in _parts(segments)))
        return reports

    async def _ask(
        self, member: MemberId, without: MemberId, segments: Sequence[tuple[PartitionId, int]], until_s: float
    ) -> tuple[CopyReport, ...]:
        """The reports of a member; empty if it did not answer in time.

        Rule `gate-asks-nobody` (GATE): the members say what they have, the record does not. Without it: 1. A member
        comes back after a switch, is listed, and is still copying. 2. The gate says that the other member may be
        stopped. 3. No member serves what the first one has not copied yet.
        """
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            try:
                reply = await ask(
                    self._driver,
                    lambda request: AskCopies(request, member, without, tuple(segments)),
                    min(until_s - loop.time(), ANSWER_S),
                )
            except TimeoutError:
                continue
            assert isinstance(reply, CopiesTold)
            return reply.reports
        return ()


def _is_no(answer: GateAnswer) -> bool:
    """Whether there is a known reason for a no. If only answers are missing, other partitions may decide."""
    return answer.verdict not in (Verdict.SAFE, Verdict.UNKNOWN)


def _parts(segments: Sequence[tuple[PartitionId, int]]) -> Iterator[Sequence[tuple[PartitionId, int]]]:
    for start in range(0, len(segments), SEGMENTS_PER_QUESTION):
        yield segments[start : start + SEGMENTS_PER_QUESTION]
