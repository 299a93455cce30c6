"""The clusters on which cases run: three groups of two members or more, behind the proxy or on a network of namespaces.
Every broker has its shims below it.

A cluster is kept from case to case, because its start takes longer than most faults. A fault that destroys a disk gets
a cluster of its own. A cluster that is not healthy after a case is thrown away.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from seriatim_api.errors import PreconditionError, SeriatimError
from seriatim_api.ids import RunId
from seriatim_local import BrokerPlan, ClusterPlan, LinkDelay, LocalCluster, SeriatimPrograms
from seriatim_local.layout.programs import find_etcd
from seriatim_local.links.delays import NO_DELAY

from e2e.faults.systems import etcd_trio
from e2e.faults.systems.namespaces import Namespaces
from e2e.faults.systems.shims import Shims

Kind = Literal["embedded", "etcd", "etcd of three"]
Place = Literal["proxy", "namespaces"]
"""How processes are linked: through the local cluster's proxy, or by cables between network namespaces."""

GROUP_COUNT: Final = 3
CLUSTER_NAME: Final = "faults"
SMALL_DISK_MIB: Final = 2_560
"""The size of a disk that becomes full.

It is above the brokers' reserve (2 GiB). The file is sparse, so it takes almost no space.
"""

_MOUNT_DEADLINE_S: Final = 30


def broker_names(members: int) -> tuple[str, ...]:
    """The names of all brokers, if each group has that many."""
    return tuple(f"g{group}-{slot}" for group in range(GROUP_COUNT) for slot in range(members))


def has_etcd() -> bool:
    """Whether there is an etcd binary to run."""
    try:
        find_etcd()
    except PreconditionError:
        return False
    return True


@dataclass(slots=True)
class FaultPrograms:
    """The real programs, with the shims below each broker, and with options for a single start of a broker.

    Attributes:
        inner: The programs that are really run.
        shims: The shims of this cluster.
        kind: The kind of coordinator.
        once: For each broker, options of its next start only.
    """

    inner: SeriatimPrograms
    shims: Shims
    kind: Kind
    once: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def broker(self, plan: ClusterPlan, broker: BrokerPlan, data: Path) -> Sequence[str]:
        """Return the command line: `env NAME=VALUE... seriatim broker ...`."""
        assignments = [f"{name}={value}" for name, value in self.shims.environment(broker.name).items()]
        argv = [*self.inner.broker(plan, broker, data), *self.once.pop(broker.name, ())]
        if self.kind == "etcd of three":
            argv += ["--coordinator", etcd_trio.endpoints(plan, str(broker.coordinator))]
        return ["env", *assignments, *argv]

    def coordinator(self, plan: ClusterPlan, data: Path) -> Sequence[str]:
        """Return the coordinator's command line. For an etcd of three members it is the parent that runs them."""
        if self.kind == "etcd of three":
            return etcd_trio.command(plan, data)
        return self.inner.coordinator(plan, data)

    def last_run(self, data: Path, broker: str) -> RunId | None:
        """Read the last member run as the real programs do."""
        return self.inner.last_run(data, broker)


@dataclass(slots=True)
class Running:
    """A running cluster.

    Attributes:
        kind: The kind of coordinator.
        cluster: The processes.
        programs: Takes options for single starts.
        shims: The shims below the brokers.
        small_disks: The brokers whose data directories are small file systems of their own.
        place: How the processes are linked.
        members: The number of members in each group.
    """

    kind: Kind
    cluster: LocalCluster
    programs: FaultPrograms
    shims: Shims
    small_disks: tuple[str, ...] = ()
    place: Place = "proxy"
    members: int = 2

    async def stop(self, *, keep: bool) -> None:
        """End the cluster. With `keep`, its logs and data stay, so that a developer can look into a failure."""
        try:
            await self.cluster.stop()
        finally:
            for broker in self.small_disks:
                await asyncio.to_thread(_unmount, self.cluster.directory / "data" / broker)
            if not keep:
                await asyncio.to_thread(shutil.rmtree, self.cluster.directory, ignore_errors=True)


async def start(
    directory: Path,
    kind: Kind,
    *,
    options: Sequence[str] = (),
    small_disks: tuple[str, ...] = (),
    network: Namespaces | None = None,
    delay: LinkDelay = NO_DELAY,
    members: int = 2,
) -> Running:
    """Start a cluster in an empty directory, and wait until it is ready.

    Args:
        directory: The directory. It is made here.
        kind: The kind of coordinator.
        options: Options of every broker, as on its command line.
        small_disks: Brokers whose data is put on small file systems of their own; needs root.
        network: The network in which the processes live; None: loopback addresses, behind the proxy.
        delay: The delay of all links, each way; only behind the proxy.
        members: The number of members in each group.

    Raises:
        SeriatimError, OSError: The cluster did not start. No process of it is left.
    """
    shims = await asyncio.to_thread(Shims, directory / "shims", directory / "data")
    programs = FaultPrograms(
        SeriatimPrograms("embedded" if kind == "embedded" else "etcd", tuple(options)), shims, kind
    )
    cluster = LocalCluster(
        directory,
        groups=GROUP_COUNT,
        members=members,
        name=CLUSTER_NAME,
        coordinator="embedded" if kind == "embedded" else "etcd",
        programs=programs,
        network=network,
        delay=delay,
    )
    place: Place = "proxy" if network is None else "namespaces"
    running = Running(kind, cluster, programs, shims, small_disks, place, members)
    try:
        for broker in small_disks:
            await asyncio.to_thread(_mount, directory, broker)
        await cluster.start()
        await cluster.wait_ready()
    except (SeriatimError, OSError, asyncio.CancelledError):
        await running.stop(keep=True)
        raise
    return running


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise PreconditionError(f"there is no {name} on this machine")
    return found


def _mount(directory: Path, broker: str) -> None:
    image, data = directory / f"{broker}.ext4", directory / "data" / broker
    data.mkdir(parents=True, mode=0o700)
    with image.open("wb") as file:
        file.truncate(SMALL_DISK_MIB << 20)
    for command in (
        [_program("mkfs.ext4"), "-q", "-m", "0", str(image)],
        [_program("mount"), "-o", "loop", str(image), str(data)],
    ):
        subprocess.run(command, check=True, timeout=_MOUNT_DEADLINE_S)
    (data / "lost+found").rmdir()  # a broker accepts only an empty data directory or its own


def _unmount(data: Path) -> None:
    subprocess.run([_program("umount"), "--lazy", str(data)], check=False, timeout=_MOUNT_DEADLINE_S)
