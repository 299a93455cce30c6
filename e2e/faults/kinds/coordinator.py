"""Faults of the coordinator alone: a compaction removes the history that a watch needs; one member of three is lost;
all data is lost, and rebuilt from the brokers' disks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from typing import ClassVar, Final, Literal

import grpc
from aetcd.rpc import rpc_pb2
from seriatim_api.errors import SeriatimError

from e2e.faults.kinds.fault import POLL_S, Fault, NotStruckError, Scene
from e2e.faults.schedule import CLIENT_SAFE
from e2e.faults.systems import etcd_trio
from e2e.faults.systems.clusters import Kind
from e2e.faults.traffic.load import PROGRESS_DEADLINE_S
from e2e.rebuilding import rebuild

CALL_DEADLINE_S: Final = 10.0
LEARN_DEADLINE_S: Final = 30.0
"""The deadline for a broker to learn what it missed, from the moment at which it reaches the coordinator again."""

PUT_COUNT: Final = 20
"""The number of keys that are written only to have history to compact. No program reads them."""


async def compact(address: str) -> int:
    """Write some keys, and compact all history before the last. Return the last revision."""
    async with grpc.aio.insecure_channel(address) as channel:

        async def call(method: str, request: object, answer: type) -> object:
            stub = channel.unary_unary(
                f"/etcdserverpb.KV/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString,  # type: ignore[attr-defined]
            )
            return await stub(request, timeout=CALL_DEADLINE_S)

        revision = 0
        for number in range(PUT_COUNT):
            put = rpc_pb2.PutRequest(key=b"/faults/history", value=b"%d" % number)
            revision = (await call("Put", put, rpc_pb2.PutResponse)).header.revision  # type: ignore[attr-defined]
        await call("Compact", rpc_pb2.CompactionRequest(revision=revision, physical=True), rpc_pb2.CompactionResponse)
        return revision


class CompactedWatch(Fault):
    """A watch of a broker loses its history.

    1. The broker is cut off from the coordinator.
    2. Keys that it watches change, and their history is compacted away.
    3. The cut heals. The watch cannot continue, so the broker must list the keys again and drop what it knew.

    Args:
        kind: The kind of coordinator.
    """

    workloads = CLIENT_SAFE

    def __init__(self, kind: Kind = "embedded") -> None:
        self.name = "compaction under a watch" if kind == "embedded" else "compaction under a watch of etcd"
        self.kind = kind
        self._struck = ""
        self._restarted = ""

    async def inject(self, scene: Scene) -> None:
        """Cut the master off from the coordinator, restart a broker of another group, move the partition, compact."""
        open_segment = await scene.open_segment()
        self._struck = open_segment.members[0]
        await scene.cluster.cut(self._struck, "coordinator", reset=True)
        others = [broker.name for broker in scene.cluster.plan.brokers if broker.group != open_segment.group]
        self._restarted = scene.dice.choice(others)
        await scene.cluster.restart(self._restarted)
        await scene.cluster.wait_ready(self._restarted)
        chain = await scene.admin.describe_chain(scene.load.topic, 0)
        # The asked broker passes the call to a member of the segment. That member may be the one that is cut off.
        with contextlib.suppress(SeriatimError):
            await scene.admin.switch_partition(chain.partition_id)
        revision = await compact(str(scene.cluster.plan.coordinator))
        scene.note(f"{self._struck} missed the restart of {self._restarted}, which came before revision {revision}")

    async def heal(self, scene: Scene) -> None:
        """Heal the cut, and wait until the broker has learned what it missed."""
        known = await self._known_run(scene)
        await scene.cluster.heal(self._struck, "coordinator")
        await scene.cluster.start_again("brokers")
        if not self._restarted:
            return
        status = await scene.cluster.status()
        run = next(broker.run for broker in status.brokers if broker.name == self._restarted)
        if known == run:
            raise NotStruckError(f"{self._struck} knew of run {run} of {self._restarted}, though it was cut off")
        until = time.monotonic() + LEARN_DEADLINE_S
        while (known := await self._known_run(scene)) != run:
            if time.monotonic() > until:
                raise NotStruckError(f"{self._struck} still believes in run {known} of {self._restarted}, not {run}")
            await asyncio.sleep(POLL_S)

    async def _known_run(self, scene: Scene) -> int | None:
        """Return the member run of the restarted broker that the cut-off broker knows."""
        address = str(scene.cluster.plan.broker(self._struck).advertised)
        with contextlib.suppress(SeriatimError):
            return (await scene.admin.runs_known_to(address)).get(self._restarted)
        return None


class RebuiltCoordinator(Fault):
    """The coordinator loses all its data, and an administrator rebuilds it from what the brokers know.

    Brokers accept nothing until then. An administrator rebuilds as soon as the brokers say that the coordinator is
    behind.
    """

    name = "rebuilt coordinator"
    workloads = CLIENT_SAFE
    accepts = False
    rebuilds: ClassVar[bool] = True

    async def inject(self, scene: Scene) -> None:
        """Kill the coordinator, remove its data, and start it again with nothing."""
        await scene.cluster.kill("coordinator")
        await asyncio.to_thread(shutil.rmtree, scene.cluster.data_directory("coordinator"))
        await scene.cluster.start_again("coordinator")
        await self._says(scene, "would write")

    async def heal(self, scene: Scene) -> None:
        """Rebuild, again and again until the coordinator has all that the brokers know."""
        await scene.cluster.start_again("coordinator")
        told = await self._says(scene, "nothing to write", "--yes")
        left = [line for line in told.splitlines() if line.startswith(("left alone", "refused"))]
        if left:
            raise NotStruckError(f"the rebuild leaves something to do: {left[0]}")
        await scene.cluster.wait_ready()

    async def _says(self, scene: Scene, wanted: str, *options: str) -> str:
        until = time.monotonic() + LEARN_DEADLINE_S
        while True:
            told = await rebuild(scene.cluster, *options)
            written = [line for line in told.splitlines() if "records written" in line]
            for line in written:
                scene.note(f"rebuilt: {line}")
            if wanted in told:
                return told
            if time.monotonic() > until:
                raise NotStruckError(f"the rebuild did not say {wanted!r} within {LEARN_DEADLINE_S:g} s: {told}")
            await asyncio.sleep(POLL_S)


class OneOfThree(Fault):
    """The leader of an etcd of three members is killed or frozen. The other two elect a new leader.

    Args:
        how: Whether the leader is killed or frozen.
    """

    kind: Kind = "etcd of three"

    def __init__(self, how: Literal["kill", "freeze"]) -> None:
        self.name = f"{how} one etcd of three"
        self._how = how
        self._pid = 0

    async def inject(self, scene: Scene) -> None:
        """Kill or freeze the leader."""
        data = scene.cluster.data_directory("coordinator")
        member = await _etcd_leader(etcd_trio.addresses(scene.cluster.plan))
        self._pid = etcd_trio.pids(data)[f"m{member}"]
        scene.note(f"{self._how} of member {member}, the leader")
        (data / etcd_trio.HOLD_NAME).touch()
        os.kill(self._pid, signal.SIGKILL if self._how == "kill" else signal.SIGSTOP)

    async def hold(self, scene: Scene) -> None:
        """Check that the coordinator still takes writes: a partition can move.

        The cluster may drop the first plans while etcd elects a leader, so the suite asks again, as an operator would.
        """
        open_segment = await scene.open_segment()
        partition = (await scene.admin.describe_chain(scene.load.topic, 0)).partition_id
        until = time.monotonic() + PROGRESS_DEADLINE_S
        while (await scene.open_segment()).no == open_segment.no:
            if time.monotonic() > until:
                raise NotStruckError(f"no partition could be moved within {PROGRESS_DEADLINE_S:g} s")
            with contextlib.suppress(SeriatimError):  # the answer may be late; the loop waits for the move itself
                await scene.admin.switch_partition(partition)
            await asyncio.sleep(POLL_S)
        await super().hold(scene)

    async def heal(self, scene: Scene) -> None:
        """Let a frozen leader continue. (The parent of the members starts a killed one again.)"""
        (scene.cluster.data_directory("coordinator") / etcd_trio.HOLD_NAME).unlink(missing_ok=True)
        if self._how == "freeze" and self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGCONT)


async def _etcd_leader(addresses: list[tuple[str, str]]) -> int:
    """Return the number of the member that leads."""
    for _attempt in range(50):
        for number, (client, _peer) in enumerate(addresses):
            async with grpc.aio.insecure_channel(client) as channel:
                stub = channel.unary_unary(
                    "/etcdserverpb.Maintenance/Status",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=rpc_pb2.StatusResponse.FromString,
                )
                with contextlib.suppress(grpc.aio.AioRpcError):
                    status = await stub(rpc_pb2.StatusRequest(), timeout=1.0)
                    if status.leader and status.leader == status.header.member_id:
                        return number
        await asyncio.sleep(0.1)
    raise NotStruckError("no member of etcd says that it leads")
