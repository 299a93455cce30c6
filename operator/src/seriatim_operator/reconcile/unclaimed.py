"""Topics that an operator made for an object, and that no object claims any more: somebody should hear of them.

An object that went while no operator was there to hear it, where nothing holds objects, leaves its topic in the brokers
with all its messages. That is the safe side, but nothing else would ever say so.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Mapping
from typing import Any, Final

from ..cluster.kube import Api
from ..plan.topics import TopicView

TOPIC_UNCLAIMED: Final = "TopicUnclaimed"

NAMED_MAX: Final = 5
"""Topics that one Event names; it counts the others."""

_OBJECT_MADE: Final = 5
"""The version of UUIDs that are derived from an object; whoever makes a topic by other means takes a random one."""


class Unclaimed:
    """What was told of one cluster's topics in the life of this operator.

    Attributes:
        is_surveyed: Whether all topics were looked at once.
    """

    def __init__(self) -> None:
        self.is_surveyed = False
        self._told: set[str] = set()  # incarnations

    def let_go(self, incarnation: str) -> None:
        """Somebody deleted the object before the operator's eyes, and it said that the topic stays: no news."""
        self._told.add(incarnation)

    async def tell(
        self, api: Api, cluster: dict[str, Any], topics: Mapping[str, TopicView], claimed: Container[str]
    ) -> None:
        """Say once which topics are nobody's.

        Args:
            api: Takes the Event.
            cluster: The BrokerCluster, which it is about.
            topics: All that the brokers have.
            claimed: Names that objects claim, those included whose last words are yet to be followed.
        """
        self._told &= {view.incarnation for view in topics.values()}
        names = [name for name, view in sorted(topics.items()) if name not in claimed and self._is_news(view)]
        self._told |= {topics[name].incarnation for name in names}
        self.is_surveyed = True
        if names:
            await api.event(cluster, "Warning", TOPIC_UNCLAIMED, _note(names))

    def _is_news(self, view: TopicView) -> bool:
        return view.phase != "DELETING" and view.incarnation not in self._told and _is_of_object(view.incarnation)


def _is_of_object(incarnation: str) -> bool:
    try:
        return uuid.UUID(incarnation).version == _OBJECT_MADE
    except ValueError:
        return False


def _note(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return (
        f"made for Topic objects that are gone, and kept: {', '.join(names[:NAMED_MAX])}{more}. Delete each with "
        "`seriatim topic delete NAME`, or apply a Topic that stands for it, which takes it over with its messages"
    )
