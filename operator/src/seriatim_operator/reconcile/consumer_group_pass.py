"""Makes passes over the ConsumerGroups of a cluster.

No stream tells when a consumer group moves. So the operator asks about each consumer group that has an object, every
30 s.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

import structlog
from seriatim_api.errors import (
    BadRequestError,
    RequestError,
    StaleOperatorError,
    UnknownGroupError,
    UnknownTopicError,
)
from seriatim_api.v1 import broker_pb2

from ..cluster.kinds import CONSUMER_GROUP
from ..plan.consumer_groups import (
    CONSUMER_GROUP_FINALIZER,
    NO_GROUP,
    ConsumerGroupFinding,
    ConsumerGroupPlan,
    ConsumerGroupView,
    CreateConsumerGroup,
    DeleteConsumerGroup,
    HoldConsumerGroup,
    RewindConsumerGroup,
    plan_consumer_groups,
)
from ..plan.topics import Surroundings, TellObject
from ..spec.consumer_group import ConsumerGroup, RewindStatus
from ..status.consumer_groups import consumer_group_status
from .object_pass import ClusterAccess, ObjectPass

LOOK_S: Final = 30.0
"""Seconds between two looks at a consumer group."""

TOPIC_S: Final = 5.0
"""Seconds until a missing topic is looked for again. If the stream tells that it was made, that comes earlier."""

REFUSED_S: Final = 10.0
"""Seconds until a refused step is tried again. Brokers refuse to delete a consumer group while it has consumers."""

_STARTS: Final = {
    "Earliest": broker_pb2.START_POSITION_EARLIEST,
    "Latest": broker_pb2.START_POSITION_LATEST,
}


def target_of(place: str) -> broker_pb2.GroupTarget:
    """A place of `spec.start` or `spec.rewind` as a message for the brokers.

    Raises:
        BadRequestError: The text has a date or a time that does not exist, such as 30 February.
    """
    if place in _STARTS:
        return broker_pb2.GroupTarget(position=_STARTS[place])
    try:
        return broker_pb2.GroupTarget(time_ms=int(datetime.fromisoformat(place).timestamp() * 1000))
    except ValueError as exc:
        raise BadRequestError(f"{place} is not a time: {exc}") from exc


Manifest = dict[str, Any]

_log = structlog.get_logger(__name__)


class ConsumerGroupClaim(NamedTuple):
    """A consumer group of a topic, which an object claims."""

    topic: str
    group: str


class ConsumerGroupPass(ObjectPass[ConsumerGroupClaim, ConsumerGroup]):
    """Makes passes over the ConsumerGroups of one cluster."""

    KIND = CONSUMER_GROUP
    FINALIZER = CONSUMER_GROUP_FINALIZER
    MODEL = ConsumerGroup
    CLAIMS_AT_ONCE = 8
    CLAIMS_PER_PASS = 64

    def __init__(self, at: ClusterAccess) -> None:
        super().__init__(at)
        self._without_topic: set[ConsumerGroupClaim] = set()

    @staticmethod
    def claim_of(manifest: Manifest) -> ConsumerGroupClaim:
        """The consumer group that an object claims."""
        spec = manifest["spec"]
        return ConsumerGroupClaim(str(spec.get("topic")), str(spec.get("group") or manifest["metadata"]["name"]))

    def told(self, topics: set[str]) -> bool:
        """Make consumer groups due that waited for one of these topics. Returns whether there are any."""
        waiting = [claim for claim in self._without_topic if claim.topic in topics]
        for claim in waiting:
            self._claims.mark(claim, self._clock())
        return bool(waiting)

    async def _work_on(self, claim: ConsumerGroupClaim, surroundings: Surroundings, *, is_long_silent: bool) -> None:
        objects = {manifest["metadata"]["uid"]: manifest for manifest in self._claims.objects(claim)}
        items = await self._read(objects.values())
        self._without_topic.discard(claim)
        if not items:
            return
        view = await self._look(claim) if surroundings is Surroundings.HERE else NO_GROUP
        if surroundings is Surroundings.HERE:
            self._claims.mark(claim, self._clock() + (TOPIC_S if view is None else LOOK_S))
        if view is None:
            self._without_topic.add(claim)
        for plan in plan_consumer_groups(items, view, surroundings, holds=self._holds):
            manifest = objects[plan.item.uid]
            finding = await self._do(manifest, plan, surroundings)
            if finding is not None and (is_long_silent or not self._is_settled(plan.item, finding)):
                await self._report(manifest, plan.item, finding)

    async def _look(self, claim: ConsumerGroupClaim) -> ConsumerGroupView | None:
        """The consumer group as the brokers have it; None if there is no such topic."""
        try:
            partitions = await self._brokers.describe_consumer_group(claim.topic, claim.group)
        except UnknownGroupError:
            return NO_GROUP
        except UnknownTopicError:
            return None
        is_known = not any(partition.HasField("error") for partition in partitions)
        lag = sum(max(0, partition.end_position - partition.position) for partition in partitions)
        return ConsumerGroupView(
            is_placed=True,
            is_consumed=any(partition.active_consumer for partition in partitions),
            lag=lag if is_known else None,
            partition_count=sum(partition.has_cursor for partition in partitions),
            paused_count=sum(partition.paused for partition in partitions),
        )

    async def _do(
        self, manifest: Manifest, plan: ConsumerGroupPlan, surroundings: Surroundings
    ) -> ConsumerGroupFinding | None:
        """Take the steps. Returns what to report then, or None if the object is gone."""
        finding = plan.finding
        for step in plan.steps:
            try:
                match step:
                    case HoldConsumerGroup(topic=topic, group=group, paused=paused):
                        await self._brokers.hold_consumer_group(topic, group, paused=paused)
                        self._claims.mark(ConsumerGroupClaim(topic, group), self._clock())
                    case RewindConsumerGroup():
                        finding = replace(finding, rewind=await self._rewind(manifest, step, surroundings))
                    case CreateConsumerGroup(topic=topic, group=group, start=start):
                        await self._brokers.create_consumer_group(topic, group, target_of(start))
                        self._claims.mark(ConsumerGroupClaim(topic, group), self._clock())
                    case DeleteConsumerGroup(topic=topic, group=group):
                        if not await self._may_delete(manifest):
                            return None
                        await self._delete(topic, group)
                    case _:
                        if not await self._do_to_object(manifest, step, surroundings):
                            return None
            except StaleOperatorError:
                raise
            except RequestError as exc:
                self._claims.mark(self.claim_of(manifest), self._clock() + REFUSED_S)
                return ConsumerGroupFinding("Refused", f"the brokers refuse it: {exc}")
        return finding

    async def _rewind(self, manifest: Manifest, step: RewindConsumerGroup, surroundings: Surroundings) -> RewindStatus:
        """Carry out a rewind. If it fails without a refusal, a later pass tries it again with the same id.

        The brokers remember the id. So a rewind is not carried out twice if an operator ends before it has written the
        result into the status.
        """
        id_ = hashlib.sha256(step.name.encode()).digest()[:16]
        try:
            count = await self._brokers.move_consumer_group(step.topic, step.group, target_of(step.to), id_)
        except StaleOperatorError:
            raise
        except RequestError as exc:
            return RewindStatus(request_id=step.request_id, state="Refused", message=f"{exc}"[:1024])
        note = f"consumer group {step.group} was moved to {step.to} on {count} partitions"
        await self._do_to_object(manifest, TellObject("GroupRewound", note), surroundings)
        return RewindStatus(request_id=step.request_id, state="Done", message=f"{step.to}, on {count} partitions")

    async def _delete(self, topic: str, group: str) -> None:
        try:
            await self._brokers.delete_consumer_group(topic, group)
        except (UnknownGroupError, UnknownTopicError):
            _log.info("consumer_group_gone_already", topic=topic, group=group)

    def _is_settled(self, item: ConsumerGroup, finding: ConsumerGroupFinding) -> bool:
        """Whether the report can wait: a step is under way, or no broker answers and the status is up to date."""
        if finding.reason in ("Creating", "Deleting"):
            return True
        is_acted_on = item.status.observed_generation == item.metadata.generation and not item.metadata.is_deleted
        return finding.keeps_status and is_acted_on

    async def _report(self, manifest: Manifest, item: ConsumerGroup, finding: ConsumerGroupFinding) -> None:
        status = consumer_group_status(item, finding, time.time())
        if status != item.status:
            await self._write_status(manifest, status)
