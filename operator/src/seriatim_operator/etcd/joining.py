"""Decides what a member of etcd must do when it starts; pure.

etcd itself trusts its flags. Suppose a member returns with an empty disk while the others cannot be reached. It would
begin a new cluster under its old identity. Then its votes and log entries are forgotten, and what the members agreed on
can be undone.

So a member's disk alone does not decide whether the member may begin a new cluster. Before a member begins for the
first time, it notes this in a register outside of its disk. After that, an empty disk means a lost disk. The way back
is through the other members: they remove the old member and add a new one.

The register also has the members with which the cluster began. A member that was not among them neither begins a
cluster nor is added. Otherwise, beside a single member, it would take away the majority before it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Member:
    """A member as the cluster lists it. A member that was added and has not started yet has an empty name."""

    id: str
    name: str
    peer_urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known when a member starts.

    Attributes:
        name: The name of this member.
        configured: The peer URL of each member by name, as the chart has them.
        has_data: There is a log on its disk.
        has_decided: There is a mark on its disk that it may begin a new cluster, and no log yet.
        begun: The register: for each member that has begun, the peer URLs of the cluster that it began.
        listed: The members that a quorum of the others lists; None if no other member answers.
        joins: The cluster that the others had when they added this member with this disk, which has never run; empty if
            they did not.
    """

    name: str
    configured: Mapping[str, str]
    has_data: bool
    has_decided: bool
    begun: Mapping[str, str]
    listed: Sequence[Member] | None
    joins: str = ""

    @property
    def peer_url(self) -> str:
        """The peer URL of this member."""
        return self.configured[self.name]

    @property
    def is_known(self) -> bool:
        """Whether the register says that this member has begun before."""
        return self.name in self.begun

    @property
    def is_left_out(self) -> bool:
        """Whether a cluster began without this member, so that the chart's number of members was raised since."""
        return any(self.peer_url not in began.split(",") for began in self.begun.values())


@dataclass(frozen=True, slots=True)
class Start:
    """Start etcd with these settings. A member with a log ignores them."""

    state: Literal["new", "existing"]
    initial_cluster: str


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """Note in the register that this member begins, then start it as a member of a new cluster."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Have the others remove a member whose disk is lost."""

    id: str


@dataclass(frozen=True, slots=True)
class TakeIn:
    """Have the others add this member."""


@dataclass(frozen=True, slots=True)
class Wait:
    """No step is safe now. `why` says what is missing."""

    why: str


LEFT_OUT = "the cluster began without this member, and the number of members cannot be changed: set etcd.members back"

Step = Start | BeginAnew | Forget | TakeIn | Wait


def next_step(now: Situation) -> Step:
    """The next step. The caller looks again after every step except `Start`."""
    if now.has_data:
        return Start("existing", _written(now.configured))
    if now.has_decided:
        return Start("new", _written(now.configured))
    if now.listed is not None:
        return _beside_others(now, now.listed)
    if now.joins:
        # Without this rule: 1. A snapshot is restored as a cluster of one member. 2. It adds this one, which counts for
        # the majority at once. 3. There is no majority, so no member answers the list, and this one never starts.
        return Start("existing", now.joins)
    if not now.is_known and not now.is_left_out:
        return BeginAnew()
    if not now.is_known:
        # Without this rule: 1. etcd.members is raised from 1 to 3. 2. The two new members see no answer of the first
        # one. 3. They are a majority of three, and begin a second cluster beside the first.
        return Wait(LEFT_OUT)
    if len(now.configured) == 1:
        return Wait("the disk of the only member is lost, and all metadata with it: restore a snapshot of etcd")
    return Wait("this member's disk is lost, and only a majority of the members can add it again: bring one back")


def _beside_others(now: Situation, listed: Sequence[Member]) -> Step:
    mine = next((member for member in listed if now.peer_url in member.peer_urls), None)
    if mine is None:
        return TakeIn() if now.is_known else Wait(LEFT_OUT)
    if not mine.name:
        return Start("existing", _written(_names_of(now, listed)))
    # It is listed by name and has never begun: it is in a new cluster whose other members started before it.
    return Forget(mine.id) if now.is_known else BeginAnew()


def joined(now: Situation, listed: Sequence[Member]) -> str:
    """What a member notes on its disk when the others have added it, and list these members."""
    return _written(_names_of(now, listed))


def _names_of(now: Situation, listed: Sequence[Member]) -> dict[str, str]:
    """The listed members by name. A member that has not started gets its name from the configuration."""
    by_url = {url: name for name, url in now.configured.items()}
    return {member.name or by_url.get(url, member.id): url for member in listed for url in member.peer_urls}


def began(configured: Mapping[str, str]) -> str:
    """What a member notes in the register about the cluster that it begins: the peer URLs of all members."""
    return ",".join(sorted(configured.values()))


def _written(members: Mapping[str, str]) -> str:
    return ",".join(f"{name}={url}" for name, url in sorted(members.items()))
