"""What a plan asks for: one frozen class for each kind of step, with the reason it gives.

`is_disruptive` steps take something away that was serving; a plan holds at most one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Action:
    """Base of all steps."""

    is_disruptive: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Apply(Action):
    """Make a child as its builder says, or make it so again."""

    manifest: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name."""
        return str(self.manifest["kind"]), str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class DeletePod(Action):
    """End a broker in order; the object goes once its kubelet has confirmed the end.

    `at_once`: the object goes without that. It proves nothing, so it is done only if the pod's node is gone or out of
    service.
    """

    name: str
    uid: str
    reason: str
    note: str
    at_once: bool = False
    is_disruptive: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class DeleteClaim(Action):
    """Give up a disk: it is lost, or drained and proved empty."""

    name: str
    uid: str
    reason: str
    is_disruptive: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class DeleteObject(Action):
    """Remove an object of ours that stands for nothing any more."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeclareDead(Action):
    """Have a death certificate written."""

    broker: str
    incarnation: str
    run: int
    evidence: str


@dataclass(frozen=True, slots=True)
class SetGroup(Action):
    """Say to the brokers what is wanted of a group."""

    group: str
    intent: str
    weight: float
    why: str


@dataclass(frozen=True, slots=True)
class RemoveGroup(Action):
    """Have the brokers forget a drained group."""

    group: str


@dataclass(frozen=True, slots=True)
class AskGate(Action):
    """Ask the brokers whether a member may be stopped, and plan again with the answer."""

    broker: str


@dataclass(frozen=True, slots=True)
class AskCounts(Action):
    """Ask how much still lies on the groups, and plan again with the answer."""


@dataclass(frozen=True, slots=True)
class MarkLost(Action):
    """First step of a lost disk: write down that it is lost, and by which proof. Nothing else happens in that pass."""

    broker_object: str
    proof: str


@dataclass(frozen=True, slots=True)
class BeginOperation(Action):
    """Take the cluster's one disruptive operation. Nothing else happens in that pass."""

    kind: str
    object: str
    reason: str


@dataclass(frozen=True, slots=True)
class EndOperation(Action):
    """Give it back."""

    note: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A change that would be made, for `status.plannedChanges`."""

    action: str
    object: str
    reason: str


@dataclass(slots=True)
class Plan:
    """Steps in order, and what the report should say.

    Attributes:
        blocked_by: Why something that is wanted does not happen now; empty if nothing is held up.
        held: By name of a Broker, why its disk is not given up although somebody says that it is lost.
        again_s: When to look again without being told, in seconds; None to wait for a change.
    """

    actions: list[Action] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)
    blocked_by: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    again_s: float | None = None

    def hold(self, broker_object: str, why: str) -> None:
        """Say why a disk is not given up."""
        self.held[broker_object] = why
        self.blocked_by.append(why)

    def look_again(self, after_s: float) -> None:
        """Look again no later than that."""
        self.again_s = after_s if self.again_s is None else min(self.again_s, after_s)

    def has_problem(self, *reasons: str) -> bool:
        """Whether one of these was found."""
        return any(reason in reasons for reason, _ in self.problems)

    @property
    def disruptive(self) -> list[Action]:
        """The steps that take something away."""
        return [action for action in self.actions if action.is_disruptive]
