"""The suite: installs once, runs the cases, checks the health of everything before and after each, then clears up."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from seriatim_api.errors import SeriatimError

from e2e.faults.traffic.load import Clients
from e2e.kubernetes import images
from e2e.kubernetes.cases import INSTALL, Case
from e2e.kubernetes.evidence import gather
from e2e.kubernetes.machines import Machines
from e2e.kubernetes.place import Place, StillNotError
from e2e.kubernetes.release import Images, Release, free_namespace, namespaces
from e2e.kubernetes.report import CaseResult, Figure, RunResult, State
from e2e.kubernetes.stage import Stage
from e2e.workers import WorkerError
from tools.kubernetes.api import Cluster
from tools.kubernetes.errors import ClusterError

CASE_DEADLINE_S: Final = 900.0
"""No case takes this long. A case that does is ended, so that the suite ends."""

AFTER_FAILURE_S: Final = 60.0
"""How long a cluster may take to become healthy after a failed case. Then a new one replaces it."""

EXPECTED: Final = (SeriatimError, ClusterError, StillNotError, WorkerError, TimeoutError, LookupError, OSError)
"""The errors with which a case may fail. Any other error is a mistake of the suite, and ends the run."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run.

    Attributes:
        out: The directory for the results; empty.
        keep: Whether the namespace stays.
        strict_limits: Whether a figure over its limit fails its case. Limits hold for a machine that does nothing else.
        use: A namespace that an earlier run has kept. Then nothing is installed, and it stays. Empty: a new namespace.
        previous: The images of the version before; None if this clone does not have it.
    """

    out: Path
    keep: bool = False
    strict_limits: bool = False
    use: str = ""
    previous: Images | None = None


class Suite:
    """One run."""

    def __init__(self, cluster: Cluster, loaded: Images, options: Options, say: Say) -> None:
        self._options = options
        self._say = say
        self._machines = Machines()
        self._cluster, self._loaded = cluster, loaded
        self._release = self._new_release(options.use)
        self._left: list[Release] = []  # releases that must still be removed
        self._clients = Clients(options.out / "clients.log")

    def _new_release(self, namespace: str = "") -> Release:
        """Make a release for that namespace, or for a new namespace."""
        place = Place(self._cluster, namespace or free_namespace(namespaces(self._cluster)))
        self._say(f"namespace {place.namespace}")
        return Release(place, self._loaded)

    async def run(self, cases: list[Case]) -> RunResult:
        """Install, and run the cases. At the end everything is ended and healed that this run started or broke."""
        began, load_before = time.monotonic(), os.getloadavg()[0]
        results: list[CaseResult] = []
        notes: list[str] = []
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self._clients)
                await self._run_all(cases, results, notes)
        finally:
            notes += await self._clear_up()
        return RunResult(
            tuple(results),
            time.monotonic() - began,
            (load_before, os.getloadavg()[0]),
            os.cpu_count() or 1,
            tuple(notes),
        )

    async def _run_all(self, cases: list[Case], results: list[CaseResult], notes: list[str]) -> None:
        """Run one case after another, each on a healthy cluster. If a case leaves the cluster unhealthy, replace it."""
        is_usable = True
        if not self._options.use:
            results.append(await self._one(0, INSTALL))
            is_usable = results[0].state == "passed"
        # A namespace that is used again has the topics of earlier runs.
        first = int(time.time()) % 1_000_000 if self._options.use else 1
        for number, case in enumerate(cases, start=first):
            if not is_usable:
                results.append(CaseResult(case.name, "skipped", problems=("nothing healthy is installed",)))
                continue
            results.append(await self._one(number, case))
            if results[-1].state == "failed" and case is not cases[-1]:
                is_usable = await self._have_healthy(number, case, notes)

    async def _have_healthy(self, number: int, case: Case, notes: list[str]) -> bool:
        """Whether the next case has a healthy cluster. If this one does not become healthy, install a new one."""
        try:
            await self._on_stage(number, self._options.out).wait_healthy(AFTER_FAILURE_S)
            return True
        except EXPECTED as error:
            unhealthy = f"after {case.name}: {error}"
        if self._options.use or self._options.keep:
            self._note(notes, f"{unhealthy}; it stays as it is in {self._release.place.namespace}")
            return False
        try:
            await self._release.remove()
        except EXPECTED as error:
            self._left.append(self._release)
            self._note(notes, f"{self._release.place.namespace} is not removed: {error}")
        try:
            self._release = await asyncio.to_thread(self._new_release)
        except EXPECTED as error:
            self._note(notes, f"{unhealthy}; not replaced: {error}")
            return False
        again = await self._one(number, replace(INSTALL, name=f"install after {case.name}"))
        self._note(notes, f"{unhealthy}; installed again: {'; '.join(again.problems) or 'ok'}")
        return again.state == "passed"

    def _note(self, notes: list[str], text: str) -> None:
        notes.append(text)
        self._say(text)

    def _on_stage(self, number: int, directory: Path) -> Stage:
        return Stage(number, self._release, self._clients, self._machines, self._options.out, directory,
                     self._options.previous)  # fmt: skip

    async def _one(self, number: int, case: Case) -> CaseResult:
        directory = self._options.out / f"{number:02}-{case.name.replace(' ', '-')}"
        directory.mkdir()
        stage = self._on_stage(number, directory)
        self._say(f"{case.name} …")
        if case.needs_previous and self._options.previous is None:
            lacking = f"this clone lacks the commit {images.PREVIOUS:.8} to upgrade from"
            return CaseResult(case.name, "skipped", problems=(lacking,))
        began = time.monotonic()
        try:
            async with asyncio.timeout(CASE_DEADLINE_S):
                if case.run is not INSTALL.run:
                    await stage.wait_healthy()
                await case.run(stage)
                await stage.wait_healthy()
        except EXPECTED as error:
            stage.problem(f"{type(error).__name__}: {str(error).strip()}")
        problems = stage.problems + self._over(stage.figures)
        state: State = "failed" if problems else "passed"
        if problems:
            await gather(self._release.place, directory)
            await self._heal(stage)
        result = CaseResult(
            case.name, state, tuple(stage.figures), tuple(problems), tuple(stage.notes),
            stage.counts.get("sent", 0), stage.counts.get("acknowledged", 0), stage.counts.get("delivered", 0),
            time.monotonic() - began,
        )  # fmt: skip
        self._tell(result)
        return result

    def _over(self, figures: list[Figure]) -> list[str]:
        if not self._options.strict_limits:
            return []
        return [f"{figure.name}: {figure}, at most {figure.limit:g}" for figure in figures if figure.is_over]

    async def _heal(self, stage: Stage) -> None:
        """Mend what a failed case left broken."""
        try:
            await self._machines.heal()
        except ClusterError as error:
            stage.problem(f"not healed: {error}")

    async def _clear_up(self) -> list[str]:
        """Bring nodes back, and remove the namespace. Return what could not be done."""
        notes = []
        try:
            await self._machines.heal()
        except EXPECTED as error:
            notes.append(f"not healed: {error}")
        stays = self._options.keep or self._options.use
        for release in (*self._left, *(() if stays else (self._release,))):
            try:
                await release.remove()
            except EXPECTED as error:
                notes.append(f"{release.place.namespace} is not removed: {error}")
        return notes

    def _tell(self, result: CaseResult) -> None:
        figures = ", ".join(f"{figure.name} {figure}" for figure in result.figures)
        verdict = "ok" if result.state == "passed" else "FAILED"
        sent = f"{result.acknowledged:,} acknowledged; " if result.acknowledged else ""
        self._say(f"{result.name}: {verdict}: {sent}{figures}; took {result.duration_s:.0f} s")
        for line in result.notes:
            self._say(f"    {line}")
        for line in result.problems:
            self._say(f"    ! {line}")
