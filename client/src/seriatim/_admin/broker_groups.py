"""Administration of broker groups: their intents, what they hold, and whether a broker may be stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from seriatim_api.errors import BadRequestError
from seriatim_api.v1 import operations_pb2, records_pb2

from seriatim._recorder import Recorder
from seriatim._transport.unary import Caller
from seriatim._values.conversion import value_of

DEADLINE_S: Final = 10.0
CHECK_DEADLINE_S: Final = 8.0
"""Seconds for a restart check. Brokers ask one another for up to 5 s before they answer `unknown`."""

Intent = Literal["active", "cordoned", "draining"]
Verdict = Literal["safe", "last_copy", "no_other_group", "peer_away", "unknown"]

_INTENTS: Final[dict[Intent, records_pb2.BrokerGroupIntent.ValueType]] = {
    "active": records_pb2.BROKER_GROUP_INTENT_ACTIVE,
    "cordoned": records_pb2.BROKER_GROUP_INTENT_CORDONED,
    "draining": records_pb2.BROKER_GROUP_INTENT_DRAINING,
}
_INTENT_NAMES: Final = {number: name for name, number in _INTENTS.items()}
_VERDICTS: Final[dict[int, Verdict]] = {
    operations_pb2.RESTART_VERDICT_SAFE: "safe",
    operations_pb2.RESTART_VERDICT_LAST_COPY: "last_copy",
    operations_pb2.RESTART_VERDICT_NO_OTHER_GROUP: "no_other_group",
    operations_pb2.RESTART_VERDICT_PEER_AWAY: "peer_away",
}


@dataclass(frozen=True, slots=True)
class BrokerGroupMember:
    """A member of a broker group.

    Attributes:
        broker: The broker's name.
        incarnation: The identity of its disk.
        run: The last member run that it registered.
        live: Whether it runs, as far as the broker that answered knows.
        certified: Whether a death certificate says that this member run has ended.
        disk_state: "full", "hangs", or empty, as the broker that answered knows it.
        unlinked: Live members of the broker group to which it says that it has no link. No segment can be opened on
            both.
    """

    broker: str
    incarnation: str
    run: int
    live: bool
    certified: bool
    disk_state: str = ""
    unlinked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """A broker group.

    Attributes:
        name: Its name.
        intent: `active`. Or `cordoned`: it has no open segments while another complete broker group can take them. Or
            `draining`: as cordoned, and its copies leave it too.
        weight: Its share of new partitions, in proportion to the weights of the others.
        members: Its members, by slot.
        heads: The number of open segments on it; None: not counted.
        segments: The number of segments of which a broker of it has a copy or a part; None: not counted.
        waits_for: The obstacle that holds up its drain, as human-readable text. Empty if there is none, or if nothing
            was counted.
    """

    name: str
    intent: Intent
    weight: float
    members: tuple[BrokerGroupMember, ...]
    heads: int | None
    segments: int | None
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class RestartCheck:
    """Whether a broker may be stopped now without leaving anything on one disk only.

    Attributes:
        verdict: `safe`, or why it is not safe.
        reason: The same as human-readable text.
        partition_id: The partition of the segment that decided the verdict; 0: no single segment did.
        segment: The number of this segment.
        index: The index up to which the other copy is in sync.
        epoch: The chain epoch of its chain.
        segments_checked: How many segments were checked.
    """

    verdict: Verdict
    reason: str
    partition_id: int
    segment: int
    index: int
    epoch: int
    segments_checked: int

    @property
    def is_safe(self) -> bool:
        """Whether the broker may be stopped now."""
        return self.verdict == "safe"


class BrokerGroupAdmin:
    """The part of `Admin` that is about broker groups and their members."""

    def __init__(self, caller: Caller, recorder: Recorder | None = None) -> None:
        self._caller = caller
        self._recorder = recorder  # writes what changes or excuses what consumer groups get into a history

    async def list_broker_groups(self, *, with_counts: bool = False) -> list[BrokerGroup]:
        """All broker groups, sorted by name.

        Args:
            with_counts: Whether to count open segments and copies. The broker then reads every chain, which takes
                longer.
        """
        request = operations_pb2.ListBrokerGroupsRequest(with_counts=with_counts)
        answer = await self._caller.operations("ListBrokerGroups", request, DEADLINE_S)
        return list(map(_group_of, answer.groups))

    async def set_broker_group(
        self, name: str, intent: Intent | None = None, *, weight: float | None = None
    ) -> BrokerGroup:
        """Set the intent or the weight of a broker group, and return at once. Open segments and copies leave it later.

        Args:
            name: The broker group's name.
            intent: The new intent; None: no change.
            weight: The new weight, above 0; None: no change.

        Raises:
            BadRequestError: The cluster has no such broker group, or there is no such intent.
        """
        if intent is not None and intent not in _INTENTS:
            raise BadRequestError(f"the intent of a broker group is {', '.join(_INTENTS)}, not {intent!r}")
        request = operations_pb2.SetBrokerGroupRequest(group=name, weight=weight)
        if intent is not None:
            request.intent = _INTENTS[intent]
        return _group_of(await self._caller.operations("SetBrokerGroup", request, DEADLINE_S))

    async def remove_broker_group(self, name: str) -> None:
        """Remove a drained broker group whose brokers have ended. If it does not exist, the call does nothing.

        Raises:
            PreconditionError: It is not drained, or a broker of it still runs.
        """
        request = operations_pb2.RemoveBrokerGroupRequest(group=name)
        await self._caller.operations("RemoveBrokerGroup", request, DEADLINE_S)

    async def remove_member(self, broker: str) -> None:
        """Remove a broker that has a death certificate and whose disk no segment needs.

        If it does not exist, the call does nothing.

        Raises:
            PreconditionError: The broker may run, or a segment needs its disk.
        """
        await self._caller.operations("RemoveMember", operations_pb2.RemoveMemberRequest(broker=broker), DEADLINE_S)

    async def check_restart(self, broker: str) -> RestartCheck:
        """Ask the other brokers whether this one may be stopped without leaving anything on one disk only.

        Raises:
            BadRequestError: The cluster has no such broker.
        """
        request = operations_pb2.CheckRestartRequest(broker=broker)
        answer = await self._caller.operations("CheckRestart", request, CHECK_DEADLINE_S)
        return value_of(RestartCheck, answer, verdict=_VERDICTS.get(answer.verdict, "unknown"), reason=answer.text)


def _group_of(described: operations_pb2.BrokerGroupDescription) -> BrokerGroup:
    return BrokerGroup(
        name=described.record.group,
        intent=_INTENT_NAMES.get(described.record.intent, "cordoned"),
        weight=described.record.weight,
        members=tuple(
            BrokerGroupMember(
                member.record.member.broker, member.record.member.incarnation, member.record.run, member.live,
                member.certified, member.disk_state, tuple(member.unlinked),
            )
            for member in described.members
        ),
        heads=described.heads if described.HasField("heads") else None,
        segments=described.segments if described.HasField("segments") else None,
        waits_for=described.waits_for,
    )  # fmt: skip
