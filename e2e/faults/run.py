"""The whole run: the schedule's cases, one after another, on clusters that are kept while they are healthy."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from seriatim_api.errors import SeriatimError

from e2e.faults import clusters
from e2e.faults.case import Outcome, run_case
from e2e.faults.catalogue import QUICK, all_faults, by_name, missing
from e2e.faults.clusters import Kind, Running
from e2e.faults.fault import Fault
from e2e.faults.load import Clients
from e2e.faults.report import CaseResult, RunResult
from e2e.faults.schedule import Case, Planned, plan
from e2e.faults.settings import Settings, SettingsError

FAILED_CASES_KEPT: Final = 20
"""Directories of failed cases that are kept: a night in which everything fails must not fill the disk."""

Progress = Callable[[str], None]


def chosen(settings: Settings) -> tuple[list[Planned], dict[str, str]]:
    """The faults of a run, and those that this machine cannot do, with the reason.

    Raises:
        SettingsError: ONLY names none.
    """
    faults = all_faults()
    if settings.only:
        faults = [fault for fault in faults if any(part in fault.name for part in settings.only)]
        if not faults:
            raise SettingsError(f"ONLY={','.join(settings.only)} is part of no fault's name")
    elif settings.quick:
        faults = [next(fault for fault in faults if fault.name == name) for name in QUICK]
    left_out = {fault.name: reason for fault in faults if (reason := missing(fault))}
    possible = [Planned(fault.name, fault.workloads) for fault in faults if fault.name not in left_out]
    return possible, left_out


def cases(settings: Settings, faults: list[Planned], clock: Callable[[], float]) -> Iterator[Case]:
    """The cases of a run: one round of all faults, or as many as can begin within the minutes.

    Args:
        settings: Of the run.
        faults: Those that can be done.
        clock: Seconds.
    """
    began = clock()
    for case in plan(settings.seed, faults, shuffled=not settings.quick):
        if settings.minutes is None:
            if case.repetition:
                return
        elif clock() - began >= settings.minutes * 60:
            return
        yield case


class Suite:
    """One run. `run` does it; what it starts, it ends, also when it is interrupted.

    Args:
        settings: Of the run; its `out` exists and is empty.
        on_progress: Told, line by line, for people.
    """

    def __init__(self, settings: Settings, on_progress: Progress) -> None:
        self._settings = settings
        self._say = on_progress
        self._running: Running | None = None
        self._cluster_count = 0
        self._kept = 0

    async def run(self) -> RunResult:
        """Run all cases.

        Raises:
            SettingsError: There is nothing to run.
        """
        faults, left_out = chosen(self._settings)
        if not faults:
            raise SettingsError(f"nothing can be run here: {left_out}")
        out = self._settings.out
        began = time.monotonic()
        results: list[CaseResult] = []
        makers = by_name()
        async with Clients(out / "clients.log") as clients:
            try:
                for case in cases(self._settings, faults, time.monotonic):
                    fault = makers[case.fault]()
                    results.append(await self._one(case, fault, clients))
                    self._tell(results[-1])
            finally:
                await self._stop(keep=False)
        return RunResult(self._settings.seed, self._settings.quick, time.monotonic() - began, tuple(results), left_out)

    async def _one(self, case: Case, fault: Fault, clients: Clients) -> CaseResult:
        directory = self._settings.out / f"case-{case.number}"
        directory.mkdir()
        try:
            running = await self._cluster(fault)
        except (SeriatimError, OSError) as error:
            return CaseResult(
                case.number, case.fault, case.workload.name, case.repetition, self._settings.seed,
                problems=(f"no cluster: {error}",),
            )  # fmt: skip
        self._say(f"case {case.number}: {case.fault}, load {case.workload.name} …")
        seed, quick = self._settings.seed, self._settings.quick
        outcome = await run_case(case, fault, running, clients, directory, seed=seed, quick=quick)
        await self._clear_up(outcome, fault, directory, running)
        return outcome.result

    async def _clear_up(self, outcome: Outcome, fault: Fault, directory: Path, running: Running) -> None:
        failed = not outcome.result.ok
        keep = failed and self._kept < FAILED_CASES_KEPT
        self._kept += keep
        if keep or self._settings.keep:
            logs = running.cluster.directory / "logs"
            await asyncio.to_thread(shutil.copytree, logs, directory / "logs")
        else:
            await asyncio.to_thread(shutil.rmtree, directory)
        if fault.own_cluster or not outcome.healthy:
            await self._stop(keep=keep)

    async def _cluster(self, fault: Fault) -> Running:
        """A cluster for this fault: the one that runs, if it will do."""
        kind: Kind = fault.kind
        if self._running is not None and (fault.own_cluster or self._running.kind != kind):
            await self._stop(keep=False)
        if self._running is None:
            self._cluster_count += 1
            directory = self._settings.out / f"cluster-{self._cluster_count}"
            self._say(f"starting a cluster ({kind}) …")
            self._running = await clusters.start(
                directory, kind, options=fault.options if fault.own_cluster else (), small_disks=fault.small_disks
            )
        return self._running

    async def _stop(self, *, keep: bool) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.stop(keep=keep)

    def _tell(self, result: CaseResult) -> None:
        figures = (
            f"{result.acknowledged:,} acknowledged, gap {_seconds(result.gap_s)}, "
            f"two copies {_seconds(result.two_copies_s)}, took {result.duration_s:.0f} s"
        )
        self._say(f"case {result.number}: {'ok' if result.ok else 'FAILED'}: {figures}")
        for note in result.notes:
            self._say(f"    {note}")
        for problem in result.problems:
            self._say(f"    ! {problem}")


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
