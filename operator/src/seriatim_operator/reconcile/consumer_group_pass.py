"""Makes passes over the ConsumerGroups of a cluster.

No stream reports when a consumer group moves. So the operator asks about each consumer group that has an object, every
30 s.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Set
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

import structlog
from seriatim_api.errors import (
    BadRequestError,
    CoordinatorBehindError,
    RequestError,
    SeriatimError,
    StaleOperatorError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
)
from seriatim_api.ids import TopicIncarnation
from seriatim_api.lag import lag_messages
from seriatim_api.v1 import broker_pb2

from ..cluster.kinds import CONSUMER_GROUP
from ..plan.consumer_groups import (
    CONSUMER_GROUP_FINALIZER,
    NO_GROUP,
    ConfigureConsumerGroup,
    ConsumerGroupFinding,
    ConsumerGroupPlan,
    ConsumerGroupView,
    CreateConsumerGroup,
    DeleteConsumerGroup,
    HoldConsumerGroup,
    RewindConsumerGroup,
    TellKeyParked,
    plan_consumer_groups,
)
from ..plan.dead_letters import TopicsAround
from ..plan.topics import ConfirmLoss, CreateTopic, Surroundings, TellObject, UpdateTopic
from ..spec.consumer_group import ConsumerGroup, RewindStatus, dead_letter_topic_of
from ..status.consumer_groups import consumer_group_status
from .consumer_group_settings import settings_from_message, settings_message
from .losses import COORDINATOR_BEHIND, HELD, Held, behind
from .object_pass import ClusterAccess, ObjectPass
from .topic_mirror import TopicMirror
from .topic_mirror import settings_message as topic_settings_message

LOOK_S: Final = 30.0
"""Seconds between two looks at a consumer group."""

TOPIC_S: Final = 5.0
"""Seconds until a missing topic is looked for again. If the stream reports that it was made, that comes earlier."""

REFUSED_S: Final = 10.0
"""Seconds until a refused step is tried again. Brokers refuse to delete a consumer group while it has consumers."""

CONFIGURED_S: Final = 1.0
"""Seconds from a change of settings to the look that finds them."""

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

    def __init__(self, at: ClusterAccess, mirror: TopicMirror, claimed_topics: Callable[[], Set[str]]) -> None:
        super().__init__(at)
        self._mirror = mirror
        self._claimed_topics = claimed_topics
        self._without_topic: set[ConsumerGroupClaim] = set()
        self._forwards: dict[ConsumerGroupClaim, float] = {}  # since when messages are on their way to dead letters
        self._configured: dict[ConsumerGroupClaim, int] = {}  # how often in a row settings were changed

    @staticmethod
    def claim_of(manifest: Manifest) -> ConsumerGroupClaim:
        """The consumer group that an object claims."""
        spec = manifest["spec"]
        return ConsumerGroupClaim(str(spec.get("topic")), str(spec.get("group") or manifest["metadata"]["name"]))

    def dead_letter_sources(self) -> dict[str, tuple[str, ...]]:
        """The topics that objects name for dead letters, each with its sources: `<topic>/<group>`."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for claim in self.claimed():
            for manifest in self._claims.objects(claim):
                spec = manifest["spec"]
                if (spec.get("retry") or {}).get("whenExhausted") == "DeadLetter":
                    name = spec.get("deadLetterTopic") or dead_letter_topic_of(*claim)
                    found[str(name)].append(f"{claim.topic}/{claim.group}")
        return {name: tuple(sorted(set(sources))) for name, sources in found.items()}

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
            self._forwards.pop(claim, None)
            self._configured.pop(claim, None)
            return
        try:
            view = await self._look(claim) if surroundings is Surroundings.HERE else NO_GROUP
        except CoordinatorBehindError:
            for item in items:
                manifest = objects[item.uid]
                await self._report(manifest, item, await self._hold(manifest, item, behind(_what(claim))))
            return
        if surroundings is Surroundings.HERE:
            self._claims.mark(claim, self._clock() + (TOPIC_S if view is None else LOOK_S))
        if view is None:
            self._without_topic.add(claim)
        around = TopicsAround(self._mirror.topics, self._claimed_topics())
        for plan in plan_consumer_groups(items, view, surroundings, holds=self._holds, around=around):
            if plan.finding.reason.startswith("DeadLetterTopic"):
                self._claims.mark(claim, self._clock() + TOPIC_S)
            if plan.finding.reason == "Placed":
                self._configured.pop(claim, None)
            manifest = objects[plan.item.uid]
            if not any(isinstance(step, ConfirmLoss) for step in plan.steps):
                self._losses.found(plan.item.uid)
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
        return self._view(claim, partitions)

    def _view(self, claim: ConsumerGroupClaim, partitions: list[broker_pb2.GroupPartition]) -> ConsumerGroupView:
        placed = [partition for partition in partitions if partition.has_cursor]
        untold = frozenset(partition.partition for partition in partitions if partition.HasField("error"))
        lag = sum(
            lag_messages(row.end_position - row.position, row.passed_messages, row.aside_messages) for row in partitions
        )
        names = {name for row in partitions for name in (*row.consumers, *row.standby_consumers)}
        names |= {row.active_consumer for row in partitions if row.active_consumer and not row.consumers}
        oldest_ms = min((row.oldest_append_ms for row in partitions if row.oldest_append_ms), default=0)
        told = [settings_from_message(row.settings) for row in placed if row.HasField("settings")]
        forwarding = sum(row.forwarding_keys for row in partitions)
        since_s = self._forwards.setdefault(claim, self._clock()) if forwarding else self._clock()
        if not forwarding:
            self._forwards.pop(claim, None)
        return ConsumerGroupView(
            is_placed=True,
            is_consumed=bool(names),
            lag=lag if not untold else None,
            partition_count=len(placed),
            paused_count=sum(row.paused for row in partitions),
            settings=tuple(dict.fromkeys(told)),
            consumer_count=len(names),
            oldest_s=max(time.time() - oldest_ms / 1000, 0.0) if oldest_ms else None,
            parked={row.partition: row.parked_keys for row in partitions if row.parked_keys},
            untold=untold,
            delayed_keys=sum(row.delayed_keys for row in partitions),
            is_forwarding_late=self._clock() - since_s > LOOK_S,
        )

    async def _do(
        self, manifest: Manifest, plan: ConsumerGroupPlan, surroundings: Surroundings
    ) -> ConsumerGroupFinding | None:
        """Take the steps. Returns what to report then, or None if the object is gone."""
        finding = plan.finding
        for step in plan.steps:
            try:
                match step:
                    case ConfirmLoss():
                        held = await self._losses.held(plan.item.uid, _what(self.claim_of(manifest)))
                        if held is not None:
                            return await self._hold(manifest, plan.item, held)
                    case HoldConsumerGroup(topic=topic, group=group, paused=paused):
                        await self._brokers.hold_consumer_group(topic, group, paused=paused)
                        self._claims.mark(ConsumerGroupClaim(topic, group), self._clock())
                    case RewindConsumerGroup():
                        finding = replace(finding, rewind=await self._rewind(manifest, step, surroundings))
                    case CreateConsumerGroup(topic=topic, group=group):
                        await self._create(step)
                        self._claims.mark(ConsumerGroupClaim(topic, group), self._clock())
                    case ConfigureConsumerGroup(topic=topic, group=group):
                        message = settings_message(step.settings, step.changed)
                        await self._brokers.configure_consumer_group(topic, group, message)
                        self._claims.mark(ConsumerGroupClaim(topic, group), self._clock() + self._pause_s(manifest))
                    case TellKeyParked():
                        await self._tell_parked(manifest, step, surroundings)
                    case CreateTopic() | UpdateTopic():
                        await self._make_dead_letter_topic(step)
                        self._claims.mark(self.claim_of(manifest), self._clock() + CONFIGURED_S)
                    case DeleteConsumerGroup(topic=topic, group=group):
                        if not await self._may_delete(manifest):
                            return None
                        await self._delete(topic, group)
                    case _:
                        if not await self._do_to_object(manifest, step, surroundings):
                            return None
            except StaleOperatorError:
                raise
            except CoordinatorBehindError:
                return await self._hold(manifest, plan.item, behind(_what(self.claim_of(manifest))))
            except RequestError as exc:
                self._claims.mark(self.claim_of(manifest), self._clock() + REFUSED_S)
                return ConsumerGroupFinding("Refused", f"the brokers refuse it: {exc}")
        return finding

    async def _hold(self, manifest: Manifest, item: ConsumerGroup, held: Held) -> ConsumerGroupFinding:
        """Make nothing, and say why. What is reported of the consumer group stays."""
        self._claims.mark(self.claim_of(manifest), self._clock() + held.again_s)
        known = item.status.condition("Ready")
        if held.reason == COORDINATOR_BEHIND and (known is None or known.reason != held.reason):
            await self._api.event(manifest, "Warning", held.reason, held.message)
        return ConsumerGroupFinding(held.reason, held.message, keeps_status=True)

    def _pause_s(self, manifest: Manifest) -> float:
        """After how many seconds to look whether the settings are there. It grows while others change them back."""
        claim = self.claim_of(manifest)
        tries = self._configured[claim] = self._configured.get(claim, 0) + 1
        return min(CONFIGURED_S * (1 << min(tries - 1, 10)), LOOK_S)

    async def _create(self, step: CreateConsumerGroup) -> None:
        """Write the cursors. Settings that any version of the brokers has by itself are not named."""
        settings = None
        if not step.settings.is_default:
            settings = settings_message(step.settings, ("mode", "delivery", "retry", "spread"))
        await self._brokers.create_consumer_group(step.topic, step.group, target_of(step.start), settings)

    async def _make_dead_letter_topic(self, step: CreateTopic | UpdateTopic) -> None:
        """Make the topic, or add partitions to it. If others made a topic of that name meanwhile, that one is used."""
        if isinstance(step, UpdateTopic):
            request = broker_pb2.UpdateTopicRequest(
                name=step.name, incarnation=step.incarnation, partition_count=step.partitions
            )
            await self._brokers.update_topic(request)
            return
        # The incarnation is a random one. An incarnation that is made of an object's UID would say that a Topic object
        # made the topic, and that it is left over when no Topic has it (`unclaimed`).
        incarnation = TopicIncarnation.of_bytes(uuid.uuid4().bytes)
        try:
            record = await self._brokers.create_topic(
                step.name, step.partitions, topic_settings_message(step.settings), incarnation
            )
        except TopicExistsError:
            return
        self._mirror.take_created(record)

    async def _tell_parked(self, manifest: Manifest, step: TellKeyParked, surroundings: Surroundings) -> None:
        """Post the Event. It names the key and its error, if the brokers answer with them."""
        try:
            keys = await self._brokers.parked_keys(step.topic, step.group, step.partition, 1)
        except StaleOperatorError:
            raise
        except SeriatimError as exc:
            _log.info("parked_keys_unknown", topic=step.topic, group=step.group, error=str(exc))
            keys = []
        what = f"key {_shown(keys[0].key)}" if keys and keys[0].key else "a key"
        more = f" and {step.count - 1} more" if step.count > 1 else ""
        error = f": {keys[0].error}" if keys and keys[0].error else ""
        note = f"{what}{more} parked on partition {step.partition}{error}"
        await self._do_to_object(manifest, TellObject("KeyParked", note, is_warning=True), surroundings)

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
        if finding.reason in ("Creating", "Configuring", "Deleting"):
            return True
        if finding.reason in HELD:
            return False
        is_acted_on = item.status.observed_generation == item.metadata.generation and not item.metadata.is_deleted
        return finding.keeps_status and is_acted_on

    async def _report(self, manifest: Manifest, item: ConsumerGroup, finding: ConsumerGroupFinding) -> None:
        status = consumer_group_status(item, finding, time.time())
        if status != item.status:
            await self._write_status(manifest, status)


def _what(claim: ConsumerGroupClaim) -> str:
    return f"consumer group {claim.group} of topic {claim.topic}"


def _shown(key: bytes) -> str:
    """A key for humans: a text if it is one, else in hexadecimal digits; at most 64 characters."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = key.hex()
    return text[:64] if text.isprintable() else key.hex()[:64]
