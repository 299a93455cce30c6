"""Administration of broker groups: what is wanted of them, what lies on them, and whether a broker may be stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from seriatim_api.errors import BadRequestError
from seriatim_api.v1 import operations_pb2, records_pb2

from seriatim._transport.unary import Caller

DEADLINE_S: Final = 10.0
CHECK_DEADLINE_S: Final = 8.0
"""Brokers ask one another for up to five seconds before they say that they do not know."""

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
    """A broker of a group.

    Attributes:
        incarnation: Of its disk.
        run: The last that it registered.
        live: Whether it runs, as far as is known.
        certified: Whether that run is certified to have ended.
        disk_state: "full", "hangs", or empty, as the broker that was asked knows it.
        unlinked: Live members of the group that it says it has no link to: no segment can be opened on both.
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
        intent: `active`; `cordoned`: no heads while another whole group will do; `draining`: and no copies.
        weight: Its share of new partitions, in proportion to the others'.
        members: By slot.
        heads: Open segments on it; None: not counted.
        segments: All segments of which a broker of it holds a copy or a part; None: not counted.
        waits_for: What keeps something on a group that is draining, for people; empty if all goes forward, or if it was
            not counted.
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
        verdict: `safe`, or why not.
        reason: For people.
        partition_id: Of the segment that decided; 0: none did.
        segment: Its number.
        index: Up to where the other copy is whole.
        epoch: Of its chain.
        segments_checked: How many were looked at.
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
        """Whether it may."""
        return self.verdict == "safe"


class BrokerGroupAdmin:
    """The part of `Admin` that is about broker groups and their members."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def list_broker_groups(self, *, with_counts: bool = False) -> list[BrokerGroup]:
        """All broker groups, by name; with counts every chain is read."""
        request = operations_pb2.ListBrokerGroupsRequest(with_counts=with_counts)
        answer = await self._caller.operations("ListBrokerGroups", request, DEADLINE_S)
        return list(map(_group_of, answer.groups))

    async def set_broker_group(
        self, name: str, intent: Intent | None = None, *, weight: float | None = None
    ) -> BrokerGroup:
        """Say what is wanted of a broker group, and return at once: heads and copies leave it in their time.

        Args:
            name: The group's.
            intent: What it should be; None: as it is.
            weight: Above 0; None: as it is.

        Raises:
            BadRequestError: There is no such group, or no such intent.
        """
        if intent is not None and intent not in _INTENTS:
            raise BadRequestError(f"a broker group is {', '.join(_INTENTS)}, not {intent!r}")
        request = operations_pb2.SetBrokerGroupRequest(group=name, weight=weight)
        if intent is not None:
            request.intent = _INTENTS[intent]
        return _group_of(await self._caller.operations("SetBrokerGroup", request, DEADLINE_S))

    async def remove_broker_group(self, name: str) -> None:
        """Forget a broker group that is drained and whose brokers have ended. One that is not there is no error.

        Raises:
            PreconditionError: It is not drained, holds something, or a broker of it runs.
        """
        request = operations_pb2.RemoveBrokerGroupRequest(group=name)
        await self._caller.operations("RemoveBrokerGroup", request, DEADLINE_S)

    async def remove_member(self, broker: str) -> None:
        """Forget a broker that is certified dead and whose disk nobody needs. One that is not there is no error.

        Raises:
            PreconditionError: It may run, or a segment needs its disk.
        """
        await self._caller.operations("RemoveMember", operations_pb2.RemoveMemberRequest(broker=broker), DEADLINE_S)

    async def check_restart(self, broker: str) -> RestartCheck:
        """Ask the other brokers whether this one may be stopped without leaving anything on one disk only.

        Raises:
            BadRequestError: There is no such broker.
        """
        request = operations_pb2.CheckRestartRequest(broker=broker)
        answer = await self._caller.operations("CheckRestart", request, CHECK_DEADLINE_S)
        return RestartCheck(
            _VERDICTS.get(answer.verdict, "unknown"),
            answer.text,
            answer.partition_id,
            answer.segment,
            answer.index,
            answer.epoch,
            answer.segments_checked,
        )


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
