"""Reports topics that an operator made for an object and that no object claims any more.

In its own namespace the operator sets no finalizers. If an object there is deleted while no operator runs, its topic
stays in the brokers with all messages. That is safe, but without this report no administrator would learn of it.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Mapping
from typing import Any, Final

from ..cluster.kube import Api
from ..plan.topics import TopicView

TOPIC_UNCLAIMED: Final = "TopicUnclaimed"

NAMED_MAX: Final = 5
"""How many topics one Event names. It counts the others."""

_OBJECT_MADE: Final = 5
"""The version of UUIDs that the operator derives from an object. Topics made by other means have a random UUID."""


class Unclaimed:
    """The topics of one cluster that this operator process has reported."""

    def __init__(self) -> None:
        self._told: set[str] = set()  # incarnations

    def let_go(self, incarnation: str) -> None:
        """Note that an object with `deletionPolicy: Retain` was deleted while the operator watched: no report."""
        self._told.add(incarnation)

    async def tell(
        self, api: Api, cluster: dict[str, Any], topics: Mapping[str, TopicView], claimed: Container[str]
    ) -> None:
        """Report once, in an Event, the topics that no object claims.

        Args:
            api: The API.
            cluster: The BrokerCluster that gets the Event.
            topics: All topics of the brokers, by name.
            claimed: Names that objects claim, with departed objects whose `deletionPolicy` is still to be carried out.
        """
        self._told &= {view.incarnation for view in topics.values()}
        names = [name for name, view in sorted(topics.items()) if name not in claimed and self._is_news(view)]
        self._told |= {topics[name].incarnation for name in names}
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
        f"topics of Topic objects that are gone are kept: {', '.join(names[:NAMED_MAX])}{more}. Apply a Topic of that "
        "name, which takes it over with its messages"
    )
