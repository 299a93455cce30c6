"""Asks the brokers whether the coordinator has lost what is missing, before the operator makes it again.

A coordinator that was restored from an older copy lacks topics and consumer groups that are on the brokers' disks. A
broker that knows this says so (error 605). After an outage of the coordinator, brokers need some seconds to notice, and
a broker that is down says nothing. So what is missing is made again only if at least one broker of each broker group
answers, and those that answer say for 10 s that nothing was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from ..cluster.kinds import BROKER, POD
from ..resources.names import BROKER_PORT, LABEL_CLUSTER, LABEL_GROUP
from .asking import TopicBrokers
from .cache import Cache

CONFIRM_S: Final = 10.0
"""Seconds for which the brokers must say that nothing was lost. They look at the coordinator every 2 s, and compare all
their chains after an outage."""

ASK_AGAIN_S: Final = 5.0
"""Seconds until the brokers are asked again, if they said that something was lost, or too few answered."""

FRESH_S: Final = 1.0
"""Seconds for which one answer counts for all that is missing, because a restore takes many topics at once."""

COORDINATOR_BEHIND: Final = "CoordinatorBehind"
"""The reason while a broker says that the coordinator has lost decisions."""

UNCONFIRMED: Final = "Unconfirmed"
"""The reason while it is not known whether the coordinator has lost what is missing."""

HELD: Final = frozenset({COORDINATOR_BEHIND, UNCONFIRMED})
"""With these reasons nothing is made, and what the status says of the topic or consumer group stays."""

REMEDY: Final = "restart and delete nothing, and run seriatim coordinator rebuild: runbook coordinator-behind"


class Held(NamedTuple):
    """Why nothing is made again now, and after how many seconds to ask again."""

    reason: str
    message: str
    again_s: float


def behind(what: str, who: str = "the brokers") -> Held:
    """The coordinator has lost decisions, in the words of a broker."""
    text = f"{who} said that the coordinator has lost decisions (error 605): {what} is not made; {REMEDY}"
    return Held(COORDINATOR_BEHIND, text, ASK_AGAIN_S)


class Losses:
    """What the brokers of one cluster say that the coordinator has lost."""

    def __init__(
        self, brokers: TopicBrokers, cache: Cache, namespace: str, cluster: str, clock: Callable[[], float]
    ) -> None:
        self._brokers = brokers
        self._cache = cache
        self._place = (namespace, cluster)
        self._clock = clock
        self._since: dict[Hashable, float] = {}  # what is missing, and since when the brokers say that nothing is lost
        self._answers: tuple[float, dict[str, str]] = (float("-inf"), {})

    def found(self, key: Hashable) -> None:
        """Note that something is not missing, or not wanted any more."""
        self._since.pop(key, None)

    async def held(self, key: Hashable, what: str) -> Held | None:
        """Why what is missing may not be made again now; None if it may.

        Args:
            key: What is missing.
            what: The same for humans, such as `topic orders`.

        Raises:
            StaleOperatorError: A newer operator acts: this one must end.
        """
        answers = await self._ask()
        pods = self._pods()
        now_s = self._clock()
        since_s = self._since.setdefault(key, now_s)
        if lost := [address for address, text in answers.items() if text]:
            self._since.pop(key)
            return behind(what, pods[lost[0]][0] if lost[0] in pods else lost[0])
        heard = {pods[address][1] for address in answers if address in pods}
        if unheard := sorted(self._groups() - heard):
            self._since.pop(key)
            who = f"group {unheard[0]}"
        elif not answers:
            self._since.pop(key)
            who = "the cluster"
        elif now_s - since_s < CONFIRM_S:
            text = f"{what} is missing: it is made again when the brokers have said for {CONFIRM_S:.0f} s that the "
            return Held(UNCONFIRMED, f"{text}coordinator has lost nothing", since_s + CONFIRM_S - now_s)
        else:
            self._since.pop(key)
            return None
        text = f"{what} is missing, and no broker of {who} says whether the coordinator has "
        return Held(UNCONFIRMED, f"{text}lost it: it is made again when one answers; start a broker of it", ASK_AGAIN_S)

    async def _ask(self) -> dict[str, str]:
        at_s, answers = self._answers
        if self._clock() - at_s >= FRESH_S:
            answers = await self._brokers.ask_for_losses()
            self._answers = (self._clock(), answers)
        return answers

    def _pods(self) -> dict[str, tuple[str, str]]:
        """Name and broker group of each broker's pod, by its address."""
        namespace, cluster = self._place
        found = {}
        for pod in self._cache.of(POD.kind, namespace):
            metadata, ip = pod["metadata"], (pod.get("status") or {}).get("podIP")
            labels = metadata.get("labels") or {}
            is_ours = self._cache.get(BROKER.kind, namespace, metadata["name"]) is not None
            if ip and is_ours and labels.get(LABEL_CLUSTER) == cluster:
                found[f"{ip}:{BROKER_PORT}"] = (metadata["name"], labels.get(LABEL_GROUP, ""))
        return found

    def _groups(self) -> set[str]:
        """The broker groups that have disks."""
        namespace, cluster = self._place
        return {
            str((broker.get("spec") or {}).get("group"))
            for broker in self._cache.of(BROKER.kind, namespace)
            if (broker["metadata"].get("labels") or {}).get(LABEL_CLUSTER) == cluster
            and not (broker.get("status") or {}).get("released")
        }
