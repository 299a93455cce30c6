"""The steps of a plan: one frozen class for each kind of step, with its reason.

A step with `is_disruptive` takes away something that was serving. A plan has at most one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

CHILD_REFUSED: Final = "ChildRefused"
"""The reason of `Degraded`, and of Events, for a write that the API server refuses."""


@dataclass(frozen=True, slots=True)
class Action:
    """Base of all steps."""

    is_disruptive: ClassVar[bool] = False

    @property
    def about(self) -> str:
        """What is written, in words, for a step that the API may refuse."""
        return str(self)


@dataclass(frozen=True, slots=True)
class Apply(Action):
    """Make a child as its builder says, or change it back to that."""

    manifest: Mapping[str, Any]

    @property
    def about(self) -> str:
        """Kind and name of the child."""
        return f"{self.manifest['kind']} {self.manifest['metadata']['name']}"


@dataclass(frozen=True, slots=True)
class DeletePod(Action):
    """Delete a pod with its grace period. The object disappears when the kubelet has confirmed that its process ended.

    With `at_once` the object disappears without that. So its absence proves nothing about the process, and the plan
    does it only if the pod's node is gone or out of service.
    """

    name: str
    uid: str
    reason: str
    note: str
    at_once: bool = False
    is_disruptive: ClassVar[bool] = True

    @property
    def about(self) -> str:
        """What is written, in words."""
        return f"deletion of Pod {self.name}"


@dataclass(frozen=True, slots=True)
class DeleteClaim(Action):
    """Delete a claim and so give up its disk: the disk is lost, or its broker group is drained and removed."""

    name: str
    uid: str
    reason: str
    is_lost: bool = False
    is_disruptive: ClassVar[bool] = True

    @property
    def about(self) -> str:
        """What is written, in words."""
        return f"deletion of PersistentVolumeClaim {self.name}"


@dataclass(frozen=True, slots=True)
class PlaceAnew(Action):
    """Ask for a broker group to be emptied and made again on other disks, as an administrator can with the annotation.

    Attributes:
        object: The name of the BrokerGroup.
        uid: Its UID.
        record: What the BrokerCluster's annotation `seriatim.dev/spread-mended` says from then on.
        note: What is done, and why.
    """

    object: str
    uid: str
    record: str
    note: str
    is_disruptive: ClassVar[bool] = True

    @property
    def about(self) -> str:
        """What is written, in words."""
        return f"annotation of BrokerGroup {self.object}"


@dataclass(frozen=True, slots=True)
class DeleteObject(Action):
    """Delete an object of our kinds that describes nothing any more."""

    kind: str
    name: str
    uid: str

    @property
    def about(self) -> str:
        """What is written, in words."""
        return f"deletion of {self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class DeclareDead(Action):
    """Have the brokers write a death certificate for a member run."""

    broker: str
    incarnation: str
    run: int
    evidence: str


@dataclass(frozen=True, slots=True)
class SetBrokerGroup(Action):
    """Send the brokers the intent and the weight of a broker group."""

    group: str
    intent: str
    weight: float
    why: str


@dataclass(frozen=True, slots=True)
class RemoveBrokerGroup(Action):
    """Have the brokers forget a drained broker group."""

    group: str


@dataclass(frozen=True, slots=True)
class AskGate(Action):
    """Ask the brokers whether a member may be stopped, and plan again with the answer."""

    broker: str


@dataclass(frozen=True, slots=True)
class AskCounts(Action):
    """Ask the brokers how many segments each broker group has, and plan again with the answer."""


@dataclass(frozen=True, slots=True)
class MarkLost(Action):
    """Mark a disk as lost, with the proof. A pass with this step takes nothing away."""

    broker_object: str
    proof: str


@dataclass(frozen=True, slots=True)
class BeginOperation(Action):
    """Take the cluster's one disruptive operation. A pass with this step takes nothing away."""

    kind: str
    object: str
    reason: str


@dataclass(frozen=True, slots=True)
class EndOperation(Action):
    """End the cluster's disruptive operation, so that another one can be taken."""

    note: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A change that is still to do, for `status.plannedChanges`."""

    action: str
    object: str
    reason: str


@dataclass(slots=True)
class Plan:
    """Steps in order, and what to report.

    Attributes:
        actions: The steps, in order.
        planned: Changes that are still to do, for `status.plannedChanges`.
        blocked_by: Why a step does not happen now; empty if no step waits.
        held: By name of a Broker, why its disk is not given up although an administrator or a node says that it is
            lost.
        lost: By name of a Broker, the proof with which its disk is marked as lost now.
        problems: Reason and message of what is wrong with the cluster, for the condition `Degraded`.
        refused: The API's sentence for each write that it keeps refusing, by a name such as `Pod orders-g0-0-x`.
        again_s: Seconds after which to look again without an event; None to wait for an event.
    """

    actions: list[Action] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)
    blocked_by: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    refused: Mapping[str, str] = field(default_factory=dict)
    again_s: float | None = None

    def hold(self, broker_object: str, why: str) -> None:
        """Note why a disk is not given up."""
        self.held[broker_object] = why
        self.blocked_by.append(why)

    def mark_lost(self, broker_object: str, proof: str) -> None:
        """Plan to mark a disk as lost."""
        self.lost[broker_object] = proof
        self.actions.append(MarkLost(broker_object, proof))

    def look_again(self, after_s: float) -> None:
        """Look again after at most `after_s` seconds."""
        self.again_s = after_s if self.again_s is None else min(self.again_s, after_s)

    def has_problem(self, *reasons: str) -> bool:
        """Whether the plan has a problem with one of these reasons."""
        return any(reason in reasons for reason, _ in self.problems)

    @property
    def refusals(self) -> list[str]:
        """A sentence for each refused write."""
        return [f"{write} is refused: {why}" for write, why in self.refused.items()]

    @property
    def disruptive(self) -> list[Action]:
        """The steps that take something away."""
        return [action for action in self.actions if action.is_disruptive]
