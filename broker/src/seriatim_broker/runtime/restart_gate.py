"""The gate before a restart: reads which segments a broker is part of, asks who else has them, and says what is safe.

Whoever stops brokers one by one asks here before each, again and again until it may. Any broker can find out; nothing
is changed by it. To say yes, all chains are read; to say no again, the one that decided last time: a roll that waits
for a copy does not read the whole cluster at each question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from seriatim_api.errors import BadRequestError
from seriatim_api.ids import MemberId, PartitionId

from ..core.control.restarting import Finding, Need, Verdict, decide, judge, needs
from ..core.values.effects import CopiesTold
from ..core.values.events import AskCopies
from ..core.values.messages import CopyReport
from ..interfaces.coordinator import Coordinator
from .directory import Directory
from .driver import Driver, Reply
from .keys import Keys
from .listing import all_chains, one_chain

SEGMENTS_PER_QUESTION = 500
"""Asked of one member at once: an answer of a few kilobytes."""

QUESTIONS_AT_ONCE = 8
ANSWER_S = 0.3
"""For one answer; the question is put again after it, for a link may have had to be made first."""

LOOK_AGAIN_S = 0.5
"""For what decided last time. The look at all has the rest of the time, also if somebody is silent here."""

AGAIN_S = 0.1
"""After an answer that leaves something open: a head may have moved between the reading and the asking."""


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """Whether a broker may be stopped now, what decided that, and how many segments were looked at."""

    verdict: Verdict
    text: str
    finding: Finding | None
    segment_count: int


class RestartGate:
    """Answers for any broker of the cluster."""

    def __init__(self, coordinator: Coordinator, keys: Keys, driver: Driver, directory: Directory) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._driver = driver
        self._directory = directory
        self._held_up: dict[str, PartitionId] = {}  # by broker, of which there are few: what was against it last

    async def check(self, broker: str, deadline_s: float) -> GateAnswer:
        """Whether the broker may be stopped without leaving anything on one disk only.

        While what was found against it last time still is, that is the answer, whoever asked then and whatever else
        there may be: the verdict is that of one partition, as is the number of segments.

        Raises:
            BadRequestError: There is no such broker.
            SeriatimError: The coordinator does not answer, or a chain cannot be read: that is not safe either.
        """
        run = self._directory.run_of(broker)
        if run is None:
            raise BadRequestError(f"there is no broker {broker!r}", broker=broker)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        while True:
            answer = await self._look_again(run.member, until_s) or await self._look(run.member, until_s)
            if answer.verdict is not Verdict.UNKNOWN or loop.time() + AGAIN_S + ANSWER_S > until_s:
                return answer  # a look without the time for an answer would only name the first segment there is
            await asyncio.sleep(AGAIN_S)

    async def _look_again(self, member: MemberId, until_s: float) -> GateAnswer | None:
        """What the partition that decided last says now; None if it is no longer known to stand against it."""
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
        run = self._directory.run_of(member.broker)
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
        """What a member says; nothing if it did not answer in time."""
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            answer: asyncio.Future[Reply] = loop.create_future()

            def take(reply: Reply, answer: asyncio.Future[Reply] = answer) -> None:
                if not answer.done():
                    answer.set_result(reply)

            request = self._driver.new_request(take)
            self._driver.feed(AskCopies(request, member, without, tuple(segments)))
            try:
                async with asyncio.timeout_at(min(until_s, loop.time() + ANSWER_S)):
                    reply = await answer
            except TimeoutError:
                continue
            finally:
                self._driver.forget_request(request)
            assert isinstance(reply, CopiesTold)
            return reply.reports
        return ()


def _is_no(answer: GateAnswer) -> bool:
    """Whether something is known to stand against it. That nobody says is no ground to ask nobody else."""
    return answer.verdict not in (Verdict.SAFE, Verdict.UNKNOWN)


def _parts(segments: Sequence[tuple[PartitionId, int]]) -> Iterator[Sequence[tuple[PartitionId, int]]]:
    for start in range(0, len(segments), SEGMENTS_PER_QUESTION):
        yield segments[start : start + SEGMENTS_PER_QUESTION]
