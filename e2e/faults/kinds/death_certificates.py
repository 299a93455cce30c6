"""A death certificate of a member run that still lives and serves, because an administrator or a proof was wrong.

A broker refuses to write the certificate while it hears from that member run (707). The suite then writes it directly
into the coordinator. The process reads it and must end (706). If the process cannot read it, the other members cut its
links, and it does not count as a copy any more: its segments get other copies while it lives.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import grpc
from aetcd.rpc import rpc_pb2
from seriatim_api.errors import DeadlineExceededError, RunAliveError, SeriatimError
from seriatim_api.v1 import common_pb2, records_pb2

from e2e.faults.kinds.disks import start_with_new_disk, wipe
from e2e.faults.kinds.fault import TWO_COPIES_DEADLINE_S, Fault, NotStruckError, Scene, lacks_copies_without
from e2e.faults.kinds.processes import brokers_of
from e2e.faults.schedule import DELAYED, among
from e2e.faults.traffic.load import PROGRESS_DEADLINE_S
from e2e.observe import Observer, Snapshot

ISSUER: Final = "fault suite"
ALONE_GROUP: Final = "alone"
CALL_DEADLINE_S: Final = 10.0
RUN_OVER: Final = "[706]"
CUT_BY_OTHERS: Final = "dismissed_run_refused"


@dataclass(frozen=True, slots=True)
class _Run:
    broker: str
    incarnation: str
    number: int


class FalseCertificate(Fault):
    """A member run gets a death certificate while it lives.

    Args:
        role: The role of the broker.
        unread: Whether the broker is first cut off from the coordinator, so that it cannot read the certificate. Then
            its process lives until the cut heals, and its disk is given up.
    """

    reads_all: ClassVar[bool] = True

    own_cluster: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("--set", "heal_after_s=2")
    ends: ClassVar[bool] = True
    workloads = among("ordered", "keys", "late", DELAYED)

    def __init__(self, role: Literal["master", "slave"], *, unread: bool = False) -> None:
        self.name = f"{'unread ' if unread else ''}false certificate of {role}"
        self._role: Literal["master", "slave"] = role
        self._unread = unread
        self._struck = ""
        self._other = ""
        self._segment = 0

    async def inject(self, scene: Scene) -> None:
        """Check that the other member refuses to write the certificate.

        Write it into the coordinator. Wait until it takes effect.
        """
        open_segment = await scene.open_segment()
        self._struck = brokers_of(open_segment, self._role)[0]
        self._other = next(name for name in open_segment.members if name != self._struck)
        self._segment = open_segment.no
        run = await self._run(scene)
        await self._is_refused(scene, run)
        if self._unread:
            await scene.cluster.cut(self._struck, "coordinator")
        pid, since, others_since = scene.cluster.pid(self._struck), self._log_size(scene), scene.log_size(self._other)
        await _certify(str(scene.cluster.plan.coordinator), scene.cluster.plan.name, run)
        if self._unread:
            await scene.says(self._other, [CUT_BY_OTHERS], others_since, PROGRESS_DEADLINE_S)
            scene.note(f"{self._other} cut its link to {self._struck}")
        else:
            await self._has_ended(scene, since)
        await scene.moved_past(open_segment)
        if self._unread and scene.cluster.pid(self._struck) != pid:
            raise NotStruckError(f"{self._struck} ended, though it could not read its certificate")

    async def hold(self, scene: Scene) -> None:
        """Check that messages are accepted.

        Wait until all that the broker holds has other copies, although its process may live.
        """
        await super().hold(scene)
        lacking = ""

        def whole(now: Snapshot) -> bool:
            nonlocal lacking
            lacking = lacks_copies_without(now, self._struck)
            return not lacking

        began = time.monotonic()
        what = f"everything has two copies without {self._struck}"
        try:
            await scene.load.observer.wait_until(whole, what, TWO_COPIES_DEADLINE_S)
        except DeadlineExceededError as error:
            raise NotStruckError(f"{error}: {lacking}") from error
        alive = "which lives" if scene.cluster.pid(self._struck) is not None else "which has ended"
        scene.note(f"two copies without {self._struck}, {alive}, {time.monotonic() - began:.1f} s later")

    async def heal(self, scene: Scene) -> None:
        """Start the broker on its disk.

        If its process still lives, wait until it has read the certificate and ended, and give it a new disk.
        """
        if not self._struck:
            return
        if not self._unread:
            await scene.cluster.start_again(self._struck)
            return
        since = self._log_size(scene)
        await scene.cluster.heal(self._struck, "coordinator")
        await self._has_ended(scene, since)
        await wipe(scene, self._struck)
        await start_with_new_disk(scene, self._struck)

    async def confirm(self, scene: Scene) -> None:
        """Check the other copies: a group reads from the beginning while the other member of the segment is dead."""
        await scene.cluster.kill(self._other)
        try:
            scene.load.tell_reader(ALONE_GROUP)
            observer = Observer(scene.admin, scene.load.topic, ALONE_GROUP)
            await observer.wait_until(
                lambda now: any(r.partition == 0 and r.segment > self._segment for r in now.readers),
                f"{ALONE_GROUP} has read segment {self._segment} of partition 0 without {self._other}",
                PROGRESS_DEADLINE_S,
            )
        finally:
            await scene.cluster.start_again(self._other)
        scene.note(f"a group read segment {self._segment} without {self._other}")

    async def _run(self, scene: Scene) -> _Run:
        for group in await scene.admin.list_broker_groups():
            for member in group.members:
                if member.broker == self._struck:
                    return _Run(member.broker, member.incarnation, member.run)
        raise NotStruckError(f"the brokers do not know {self._struck}")

    async def _is_refused(self, scene: Scene, run: _Run) -> None:
        """Check that the member which is linked to the broker does not write a certificate, also if an administrator
        asks for it.
        """
        address = str(scene.cluster.plan.broker(self._other).advertised)
        try:
            await scene.admin.declare_dead_at(address, run.broker, run.number, ISSUER)
        except RunAliveError:
            return
        except SeriatimError as error:
            raise NotStruckError(f"{self._other} was asked to certify {self._struck}, and said {error}") from error
        raise NotStruckError(f"{self._other} certified a run that it is linked to: {self._struck}, run {run.number}")

    async def _has_ended(self, scene: Scene, since: int) -> None:
        await scene.ended(self._struck)
        text = scene.log_since(self._struck, since)
        if RUN_OVER not in text:
            raise NotStruckError(f"{self._struck} ended, and not because of its certificate: {text[-500:]}")
        scene.note(f"{self._struck} read its certificate, and ended")

    def _log_size(self, scene: Scene) -> int:
        return scene.log_size(self._struck)


async def _certify(coordinator: str, cluster: str, run: _Run) -> None:
    """Write the certificate to the key at which brokers look for it."""
    certificate = records_pb2.DeathCertificate(
        member=common_pb2.Member(broker=run.broker, incarnation=run.incarnation),
        run=run.number,
        issuer=ISSUER,
        issued_at_ms=time.time_ns() // 1_000_000,
        evidence="an administrator who is wrong",
    )
    key = f"/seriatim/{cluster}/certificates/{run.incarnation}/{run.number}"
    async with grpc.aio.insecure_channel(coordinator) as channel:
        put = channel.unary_unary(
            "/etcdserverpb.KV/Put",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=rpc_pb2.PutResponse.FromString,
        )
        request = rpc_pb2.PutRequest(key=key.encode(), value=certificate.SerializeToString())
        await put(request, timeout=CALL_DEADLINE_S)
