"""What a member of etcd should do when it starts; pure.

etcd itself trusts its flags. A member that comes back with an empty disk while the others cannot be reached would begin
a new cluster under its old identity: its promises to the others are forgotten, and what they agreed on can be undone.
So whether a member may begin anew is not read off its disk alone: it is written down, outside of that disk, before it
begins for the first time. Afterwards an empty disk means a lost one, and the way back leads through the others: they
forget the old member and take in a new one. With it stands which members the cluster began with: one that was not among
them neither begins anything nor is taken in (beside a single member it would take the majority away before it starts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Member:
    """A member as the cluster lists it; one that was taken in and has not started yet has no name."""

    id: str
    name: str
    peer_urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known when a member starts.

    Attributes:
        name: This member's.
        configured: Peer URL of each member by name, as the chart has them.
        has_data: There is a log on its disk.
        has_decided: Its disk says that it may begin anew, and it has not come to a log yet.
        begun: What is written down: each member that has begun, and the members of the cluster that it began.
        listed: Members, by the word of a quorum of the others; None if none of them answers.
    """

    name: str
    configured: Mapping[str, str]
    has_data: bool
    has_decided: bool
    begun: Mapping[str, str]
    listed: Sequence[Member] | None

    @property
    def peer_url(self) -> str:
        """This member's."""
        return self.configured[self.name]

    @property
    def is_known(self) -> bool:
        """Whether this member has begun before."""
        return self.name in self.begun

    @property
    def is_left_out(self) -> bool:
        """Whether a cluster has begun without it, which has grown since."""
        return any(self.peer_url not in began.split(",") for began in self.begun.values())


@dataclass(frozen=True, slots=True)
class Start:
    """Start, with these settings; a member with a log ignores them."""

    state: Literal["new", "existing"]
    initial_cluster: str


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """Write down that this member begins, then start as one of a new cluster."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Have the others forget a member whose disk is lost."""

    id: str


@dataclass(frozen=True, slots=True)
class TakeIn:
    """Have the others take this member in."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is safe now."""

    why: str


LEFT_OUT = "the cluster has begun without this member: the number of members cannot be changed; set etcd.members back"

Step = Start | BeginAnew | Forget | TakeIn | Wait


def next_step(now: Situation) -> Step:
    """What to do; look again after everything but `Start`."""
    if now.has_data:
        return Start("existing", _written(now.configured))
    if now.has_decided:
        return Start("new", _written(now.configured))
    if now.listed is not None:
        return _beside_others(now, now.listed)
    if not now.is_known and not now.is_left_out:
        return BeginAnew()
    if not now.is_known:
        # Two that were added to one would be a majority of their own, and begin a second cluster beside it.
        return Wait(LEFT_OUT)
    if len(now.configured) == 1:
        return Wait("the disk of the only member is lost, and the metadata with it: restore a snapshot")
    return Wait("this member's disk is lost, and the others cannot be reached: it takes a majority to let it in again")


def _beside_others(now: Situation, listed: Sequence[Member]) -> Step:
    mine = next((member for member in listed if now.peer_url in member.peer_urls), None)
    if mine is None:
        return TakeIn() if now.is_known else Wait(LEFT_OUT)
    if not mine.name:
        return Start("existing", _written(_names_of(now, listed)))
    # Listed by name and never begun: the others of a new cluster were quicker.
    return Forget(mine.id) if now.is_known else BeginAnew()


def _names_of(now: Situation, listed: Sequence[Member]) -> dict[str, str]:
    """The members as they are; names of those that have not started are in the configuration."""
    by_url = {url: name for name, url in now.configured.items()}
    return {member.name or by_url.get(url, member.id): url for member in listed for url in member.peer_urls}


def began(configured: Mapping[str, str]) -> str:
    """What a member writes down of the cluster that it begins: the peer URLs of all."""
    return ",".join(sorted(configured.values()))


def _written(members: Mapping[str, str]) -> str:
    return ",".join(f"{name}={url}" for name, url in sorted(members.items()))
