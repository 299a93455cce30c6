"""The whole run: the schedule's cases, one after another, on clusters that are kept while they are healthy."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from seriatim_api.errors import SeriatimError

from e2e.faults.case import Outcome, run_case
from e2e.faults.catalogue import QUICK, all_faults, by_name, missing
from e2e.faults.kinds.fault import Fault
from e2e.faults.report import CaseResult, RunResult
from e2e.faults.schedule import WORKLOADS, Case, Planned, plan
from e2e.faults.settings import Settings
from e2e.faults.systems import clusters, namespaces
from e2e.faults.systems.clusters import Kind, Place, Running, broker_names
from e2e.faults.systems.namespaces import Namespaces
from e2e.faults.traffic.keyed_consumers import Workers
from e2e.faults.traffic.load import Clients
from e2e.usage import SettingsError

FAILED_CASES_KEPT: Final = 20
"""The most directories of failed cases that are kept. If every case fails, they must not fill the disk."""

QUICK_FEATURES: Final = 3
"""In a quick run, one case in this number has features. The seed says which. With features a case takes 2 s longer."""

Progress = Callable[[str], None]


def place_of(fault: Fault, settings: Settings, no_namespaces: str) -> Place:
    """Say how the processes are linked for this fault.

    Args:
        fault: The fault.
        settings: The settings of the run.
        no_namespaces: Why this machine cannot make namespaces; empty if it can.
    """
    wanted = settings.network == "namespaces" or (settings.network == "auto" and fault.cuts)
    return "namespaces" if wanted and not no_namespaces else "proxy"


def chosen(settings: Settings, no_namespaces: str = "") -> tuple[list[Planned], dict[str, str]]:
    """Return the faults of a run, and the faults that this machine cannot do, with the reason.

    Raises:
        SettingsError: ONLY is part of no fault's name, or there is no such LOAD.
    """
    faults = all_faults()
    if settings.only:
        faults = [fault for fault in faults if any(part in fault.name for part in settings.only)]
        if not faults:
            raise SettingsError(f"ONLY={','.join(settings.only)} is part of no fault's name")
    elif settings.quick:
        faults = [next(fault for fault in faults if fault.name == name) for name in QUICK]
    left_out = {fault.name: reason for fault in faults if (reason := missing(fault))}
    left_out |= {
        fault.name: f"a broker group needs {fault.members_min} members (MEMBERS)"
        for fault in faults
        if fault.members_min > settings.members
    }
    if settings.retention_s:
        why = "it reads everything again, and topics keep messages for seconds (RETENTION)"
        left_out |= {fault.name: why for fault in faults if fault.reads_all}
    known = [load.name for load in WORKLOADS]
    if settings.load:
        if settings.load not in known:
            raise SettingsError(f"LOAD is one of {', '.join(known)}, not {settings.load!r}")
        others = [fault.name for fault in faults if settings.load not in (fault.workloads or known)]
        left_out |= dict.fromkeys(others, f"it does not go with the load {settings.load}")
    possible = [
        Planned(
            fault.name, (settings.load,) if settings.load else fault.workloads, place_of(fault, settings, no_namespaces)
        )
        for fault in faults
        if fault.name not in left_out
    ]
    return possible, left_out


def cases(settings: Settings, faults: list[Planned], clock: Callable[[], float]) -> Iterator[Case]:
    """Return the cases of a run: one round of all faults, or as many as can begin within `minutes`.

    Args:
        settings: The settings of the run.
        faults: The faults that this machine can do.
        clock: Returns the time in seconds.
    """
    began = clock()
    for case in plan(settings.seed, faults, shuffled=not settings.quick):
        if settings.minutes is None:
            if case.repetition:
                return
        elif clock() - began >= settings.minutes * 60:
            return
        if settings.retention_s:
            load = replace(
                case.workload, retention_ms=settings.retention_s * 1000, is_late=False, has_workers=False
            )  # fmt: skip
            case = replace(case, workload=load)
        yield case


def has_features(settings: Settings, number: int) -> bool:
    """Whether an administrator uses features beside the load of the case with that number."""
    if not settings.features or not settings.quick or settings.only:
        return settings.features
    return (number + settings.seed) % QUICK_FEATURES == 0


class Suite:
    """One run. `run` ends everything that it starts, also if it is interrupted.

    Args:
        settings: The settings of the run. Its directory `out` exists and is empty.
        on_progress: Called with each line of progress.
    """

    def __init__(self, settings: Settings, on_progress: Progress) -> None:
        self._settings = settings
        self._say = on_progress
        self._running: Running | None = None
        self._network: Namespaces | None = None
        self._clients: dict[Place, Clients] = {}
        self._workers: dict[Place, Workers] = {}
        self._stack = AsyncExitStack()
        self._cluster_count = 0
        self._kept = 0

    async def run(self) -> RunResult:
        """Run all cases.

        Raises:
            SettingsError: There is nothing to run.
        """
        no_namespaces = "" if self._settings.network == "proxy" else await asyncio.to_thread(namespaces.missing)
        if no_namespaces and self._settings.network == "namespaces":
            raise SettingsError(f"there can be no network namespaces here: {no_namespaces}")
        faults, left_out = chosen(self._settings, no_namespaces)
        if not faults:
            raise SettingsError(f"nothing can be run here: {left_out}")
        began = time.monotonic()
        results: list[CaseResult] = []
        makers = by_name()
        async with self._stack:
            try:
                for case in cases(self._settings, faults, time.monotonic):
                    fault = makers[case.fault]()
                    results.append(await self._one(case, fault, place_of(fault, self._settings, no_namespaces)))
                    self._tell(results[-1])
            finally:
                await self._stop(keep=False)
        seed, quick, took_s = self._settings.seed, self._settings.quick, time.monotonic() - began
        return RunResult(seed, quick, took_s, tuple(results), left_out, no_namespaces)

    async def _one(self, case: Case, fault: Fault, place: Place) -> CaseResult:
        directory = self._settings.out / f"case-{case.number}"
        directory.mkdir()
        try:
            running = await self._cluster(fault, place)
        except (SeriatimError, OSError) as error:
            return CaseResult(
                case.number, case.fault, case.workload.name, case.repetition, self._settings.seed, network=place,
                problems=(f"no cluster: {error}",),
            )  # fmt: skip
        self._say(f"case {case.number}: {case.fault}, load {case.workload.name}, {place} …")
        seed, quick = self._settings.seed, self._settings.quick
        outcome = await run_case(
            case, fault, running, self._clients[place], directory, seed=seed, quick=quick,
            publish=self._settings.publish, features=has_features(self._settings, case.number),
            workers=self._workers[place],
        )  # fmt: skip
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

    async def _cluster(self, fault: Fault, place: Place) -> Running:
        """Return a cluster for this fault: the running one if it fits, otherwise a new one."""
        kind: Kind = fault.kind
        if self._running is not None and (
            fault.own_cluster or (self._running.kind, self._running.place) != (kind, place)
        ):
            await self._stop(keep=False)
        if self._running is None:
            network = await self._settle_in(place)
            self._cluster_count += 1
            directory = self._settings.out / f"cluster-{self._cluster_count}"
            self._say(f"starting a cluster ({kind}, {place}) …")
            self._running = await clusters.start(
                directory,
                kind,
                options=(*(fault.options if fault.own_cluster else ()), *self._retention_options),
                small_disks=fault.small_disks,
                network=network,
                delay=self._settings.delay,
                members=self._settings.members,
            )
        return self._running

    @property
    def _retention_options(self) -> tuple[str, ...]:
        """If topics may keep messages only for seconds, brokers look every second for messages to drop."""
        is_short = self._settings.retention_s or self._settings.features
        return ("--set", "retention_look_s=1") if is_short else ()

    async def _settle_in(self, place: Place) -> Namespaces | None:
        """Make the network if this place needs one, and start clients there.

        Both are made once, and removed at the end of the run.
        """
        if place == "namespaces" and self._network is None:
            self._network = await Namespaces.create(broker_names(self._settings.members))
            self._stack.push_async_callback(self._network.remove)
        network = self._network if place == "namespaces" else None
        if place not in self._clients:
            clients = Clients(self._settings.out / f"clients-{place}.log", network)
            self._clients[place] = await self._stack.enter_async_context(clients)
            self._workers[place] = Workers(self._settings.out / f"workers-{place}.log", network)
            self._stack.push_async_callback(self._workers[place].end)
        return network

    async def _stop(self, *, keep: bool) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.stop(keep=keep)

    def _tell(self, result: CaseResult) -> None:
        figures = (
            f"{result.acknowledged:,} acknowledged, gap {_seconds(result.gap_s)}, "
            f"all copies {_seconds(result.two_copies_s)}, took {result.duration_s:.0f} s"
        )
        self._say(f"case {result.number}: {'ok' if result.ok else 'FAILED'}: {figures}")
        for note in result.notes:
            self._say(f"    {note}")
        for problem in result.problems:
            self._say(f"    ! {problem}")


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
