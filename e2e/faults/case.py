"""One case, from a healthy cluster to the judgement.

1  The cluster is healthy: every broker is ready, no link is cut, no process is frozen.
2  The suite makes a topic, and messages flow.
3  The fault is injected, lasts, and is healed.
4  Messages still flow, and everything has two copies again.
5  The producer sends no more. Every send has an outcome, and every group has read everything.
6  The histories of all client processes are judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from seriatim.history import HistoryWriter, Report, check, render
from seriatim_api.errors import DeadlineExceededError, PreconditionError, SeriatimError
from seriatim_local import FaultRecord, LocalCluster

from e2e.faults.kinds.fault import Fault, NotStruckError, Scene, injected
from e2e.faults.report import COUNTS, CaseResult, judge
from e2e.faults.schedule import Case
from e2e.faults.systems.admin_calls import Admins
from e2e.faults.systems.clusters import Running
from e2e.faults.traffic.features import Features
from e2e.faults.traffic.keyed_consumers import GROUP as WORKERS
from e2e.faults.traffic.keyed_consumers import Crew, Workers
from e2e.faults.traffic.load import LATE_GROUP, Clients, Load, break_connections
from e2e.faults.traffic.publications import Publishing
from e2e.workers import WorkerError

HEALTHY_DEADLINE_S: Final = 60.0
LATE_DEADLINE_S: Final = 60.0
"""The deadline from the heal until delayed messages come in time again. Restarted brokers need some seconds for it."""

_EXPECTED: Final = (SeriatimError, NotStruckError, WorkerError, TimeoutError, OSError)
"""The errors with which a case may fail. Any other error is a mistake of the suite, and ends the run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case's result.

    Attributes:
        result: The result for the report.
        healthy: Whether the next case may use the cluster.
    """

    result: CaseResult
    healthy: bool


async def unhealthy(cluster: LocalCluster) -> str:
    """Say what is wrong with the processes and links, as human-readable text; empty if nothing is."""
    try:
        await cluster.wait_ready(deadline_s=HEALTHY_DEADLINE_S)
    except (DeadlineExceededError, PreconditionError) as error:
        return str(error)
    status = await cluster.status()
    if status.coordinator_state != "running":
        return f"the coordinator is {status.coordinator_state}"
    broken = [f"{broker.name} is cut off from {', '.join(broker.cuts)}" for broker in status.brokers if broker.cuts]
    return "; ".join(broken)


def ended_by_themselves(deeds: Iterable[FaultRecord]) -> list[str]:
    """Return the processes that ended although the suite did not end them. As a rule an assertion failed there."""
    return [f"{deed.victim} ended by itself: {deed.details}" for deed in deeds if deed.kind == "end"]


async def run_case(case: Case, fault: Fault, running: Running, clients: Clients, directory: Path, *, seed: int,
                   quick: bool, publish: bool = False, features: bool = False,
                   workers: Workers | None = None) -> Outcome:  # fmt: skip
    """Run a case.

    Args:
        case: A case of the schedule.
        fault: A new fault of the case's kind.
        running: The cluster.
        clients: The client processes.
        directory: An empty directory for the histories.
        seed: The seed of the run, for the report.
        quick: Whether the fault should be short.
        publish: Whether a program publishes beside the load.
        features: Whether an administrator uses features beside the load.
        workers: The processes of workers; None: there are no workers, whatever the load says.
    """
    began = time.monotonic()
    result = CaseResult(case.number, case.fault, case.workload.name, case.repetition, seed, network=running.place)
    problems: list[str] = []
    deeds_before = len(running.cluster.faults)
    wrong = await unhealthy(running.cluster)
    if wrong:
        return Outcome(replace(result, problems=(f"not healthy before: {wrong}",)), healthy=False)
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admins(running.cluster.bootstrap))
        load = Load(clients, admin, running.cluster.bootstrap, case.number, case.workload, directory)
        crew = None
        # What is lost of dead letters is not declared, so no case that declares a gap has workers.
        if workers is not None and case.workload.has_workers and not fault.declares_gaps:
            dice = random.Random(f"workers {seed} {case.number}")
            crew = Crew(
                workers, running.cluster.bootstrap, case.number, load.topic, case.workload.partitions, dice, directory
            )
            stack.push_async_callback(crew.end)
        scene = Scene(running, admin, load, case.dice(), case.hold_s, quick, crew=crew)
        person = None
        if features:
            dice = random.Random(f"features {seed} {case.fault} {case.repetition}")
            person = Features(
                running.cluster.bootstrap, case.number, dice, directory / "features",
                loses=fault.declares_gaps, forgets=fault.rebuilds,
            )  # fmt: skip
            stack.push_async_callback(person.end)
            scene.person = person
        measured: dict[str, float] = {}
        with HistoryWriter(directory / "suite.jsonl", "suite") as history:
            try:
                if publish:
                    dice = random.Random(f"publishing {seed} {case.number}")
                    program = Publishing(running.cluster.bootstrap, case.number, dice, directory)
                    stack.push_async_callback(program.end)
                    problems += await _tried(program.begin())
                if person is not None:
                    problems += await _tried(person.begin())
                for step in (_strike, _recover, _drain):
                    problems += await _tried(step(fault, scene, history, measured))
                if publish:
                    problems += await _tried(_published(program, scene))
                if person is not None:
                    problems += await _tried(person.finish())
                    scene.note(person.summary)
                    await person.end()
            finally:
                await load.end()
            for group in (*load.groups, *((WORKERS,) if crew is not None else ())):
                history.end(group, topic=load.topic, drained="drained" in measured)
    report = await asyncio.to_thread(_judge, directory)
    fields: dict[str, Any] = judge(
        report,
        producer_killed=fault.name == "kill producer",
        declares_gaps=fault.declares_gaps or bool(case.workload.retention_ms),
    )
    problems += fields.pop("problems")
    if person is not None:
        problems += await _judged(person, scene, fields)
    wrong = await unhealthy(running.cluster)
    if wrong:
        problems.append(f"not healthy after: {wrong}")
    if not fault.ends:
        problems += ended_by_themselves(running.cluster.faults[deeds_before:])
    result = replace(
        result,
        **fields,
        gap_s=measured.get("gap"),
        two_copies_s=measured.get("two copies"),
        duration_s=time.monotonic() - began,
        problems=tuple(problems),
        notes=tuple(scene.notes),
    )
    return Outcome(result, healthy=not problems)


async def _tried(step: Awaitable[object]) -> list[str]:
    """Return the error with which a step failed, or the problems that it found."""
    try:
        found = await step
    except _EXPECTED as error:
        return [_text(error)]
    return found if isinstance(found, list) else []


async def _published(program: Publishing, scene: Scene) -> list[str]:
    """Check that all published rows are there, once and in order."""
    problems = await program.finish()
    lost = f", {program.lost_count} of them with loss" if program.lost_count else ""
    scene.note(f"{program.last} publications{lost}; the program was killed {program.kill_count} times")
    return problems


async def _judged(person: Features, scene: Scene, fields: dict[str, Any]) -> list[str]:
    """Judge the history of the administrator who used features. Add its counts to the fields of the result."""
    if not person.has_begun:
        return []
    report = await asyncio.to_thread(person.judgement)
    for what in report.unjudged:
        scene.note(f"not judged: {what}")
    found: dict[str, Any] = judge(report, producer_killed=False, declares_gaps=person.has_gaps)
    for name in COUNTS:
        fields[name] += found[name]
    fields["features"] = tuple(person.done)
    return [f"beside features: {problem}" for problem in found["problems"]]


async def _strike(fault: Fault, scene: Scene, history: HistoryWriter, measured: dict[str, float]) -> None:
    """Begin the load, then inject the fault, hold it and heal it."""
    load = scene.load
    await load.begin()
    if scene.crew is not None:
        await scene.crew.begin()
    measured["struck at"] = time.monotonic()
    async with _resets(scene):
        history.fault(fault.name, "?", phase="inject")
        try:
            async with injected(fault, scene):
                try:
                    await fault.hold(scene)
                finally:
                    measured["healed at"] = time.monotonic()
        finally:
            measured.setdefault("healed at", time.monotonic())
            history.fault(fault.name, "; ".join(scene.notes) or "?", phase="heal")


async def _recover(fault: Fault, scene: Scene, _history: HistoryWriter, measured: dict[str, float]) -> None:
    """Wait until messages flow and everything has two copies again."""
    load = scene.load
    if "healed at" not in measured:
        return
    if load.workload.is_late and LATE_GROUP not in load.groups:
        await load.begin_reader(LATE_GROUP)
    await load.goes_on()
    measured["gap"] = await load.gap_s(measured["struck at"])
    await scene.has_copies()
    measured["two copies"] = time.monotonic() - measured["healed at"]
    await fault.confirm(scene)


async def _drain(_fault: Fault, scene: Scene, _history: HistoryWriter, measured: dict[str, float]) -> None:
    """Stop sending. Wait until every send has an outcome and every group has read everything."""
    if scene.load.groups:
        await scene.load.stop()
        if scene.load.workload.delays:
            scene.note(scene.load.delayed_summary(measured["struck at"], measured["healed at"]))
            late_s = scene.load.lateness_ended_s(measured["healed at"])
            if late_s > LATE_DEADLINE_S:
                raise NotStruckError(f"delayed messages were still late {late_s:.1f} s after the heal")
        if scene.crew is not None:
            await scene.crew.finish()
            scene.note(scene.crew.summary)
        measured["drained"] = time.monotonic()


def _judge(directory: Path) -> Report:
    report = check(sorted(directory.glob("*.jsonl")))
    (directory / "judgement.txt").write_text(render(report) + "\n")
    return report


@contextlib.asynccontextmanager
async def _resets(scene: Scene) -> AsyncIterator[None]:
    """Break the clients' connections again and again, if the workload says so."""
    if not scene.load.workload.resets:
        yield
        return
    over = asyncio.Event()
    # The number of breaks depends on the time that things take. So these dice are separate from the fault's dice.
    dice = random.Random(scene.dice.random())
    task = asyncio.create_task(break_connections(scene.cluster, over, dice), name="resets")
    try:
        yield
    finally:
        over.set()
        count = await task
        scene.note(f"the clients' connections were broken {count} times")


def _text(error: BaseException) -> str:
    said = str(error).strip() or type(error).__name__
    return said if isinstance(error, NotStruckError) else f"{type(error).__name__}: {said}"
