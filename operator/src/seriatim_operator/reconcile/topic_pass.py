"""Makes passes over the Topics of a cluster: plans and takes steps for what changed, and reports.

The brokers send their topics over a stream that stays open (`topics.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog
from google.protobuf.field_mask_pb2 import FieldMask
from seriatim_api.errors import (
    CoordinatorBehindError,
    RequestError,
    StaleOperatorError,
    TopicExistsError,
    UnknownTopicError,
)
from seriatim_api.v1 import broker_pb2

from ..cluster.kinds import TOPIC
from ..plan.topics import (
    TOPIC_FINALIZER,
    ConfirmLoss,
    CreateTopic,
    DeleteTopic,
    Finding,
    Surroundings,
    TopicPlan,
    UpdateTopic,
    plan_topics,
)
from ..spec.topic import Topic
from ..status.topics import is_in_danger, is_news, topic_events, topic_status
from .losses import COORDINATOR_BEHIND, HELD, UNCONFIRMED, Held, behind
from .object_pass import ClusterAccess, ObjectPass
from .topic_mirror import TopicMirror, settings_message

PASSING_S: Final = 2.0
"""Seconds after which a step under way is reported. A shorter step would be written twice, before and after it."""

REFUSED_S: Final = 60.0
"""Seconds until a refused step is tried again, because another version of the brokers may accept it."""

TOLD_S: Final = 0.5
"""Seconds for which changes of chains are collected, because a failover changes many at once."""

EVENTS_PER_MINUTE_MAX: Final = 120
"""Events about chains in one minute, of all topics of a cluster. The fault of one broker may concern every topic; the
cluster has an Event of its own, and the status of each topic is true without Events."""

Manifest = dict[str, Any]

_log = structlog.get_logger(__name__)


class TopicPass(ObjectPass[str, Topic]):
    """Makes passes over the Topics of one cluster.

    `mirror` has what the brokers reported. The owner of the stream (`topics.py`) fills it and calls `told`.
    """

    KIND = TOPIC
    FINALIZER = TOPIC_FINALIZER
    MODEL = Topic
    CLAIMS_AT_ONCE = 16
    CLAIMS_PER_PASS = 256

    def __init__(self, at: ClusterAccess, mirror: TopicMirror) -> None:
        super().__init__(at)
        self._mirror = mirror
        self._letters: Mapping[str, tuple[str, ...]] = {}  # topics for dead letters, with their sources
        self._events = (0, 0)  # the minute, and how many Events about chains were posted in it
        self._warned: set[str] = set()  # topics about whose copies the last Event was a Warning
        self._passing: dict[str, tuple[str, float]] = {}  # for each topic what it waits for, and since when

    @staticmethod
    def claim_of(manifest: Manifest) -> str:
        """The name of the topic that an object claims."""
        return str(manifest["spec"].get("name") or manifest["metadata"]["name"])

    def told(self, names: Iterable[str]) -> float:
        """Make topics due about which the brokers reported something. Returns after how many seconds the first is
        due."""
        now_s, soonest_s = self._clock(), TOLD_S
        for name in names:
            pause_s = 0.0 if name in self._passing else TOLD_S
            self._claims.mark(name, now_s + pause_s)
            soonest_s = min(soonest_s, pause_s)
        return soonest_s

    def take_dead_letters(self, sources: Mapping[str, tuple[str, ...]]) -> bool:
        """Take which topics get dead letters of which consumer groups. Returns whether that is news.

        Topics that got another source, or lost one, are due.
        """
        changed = [name for name in {*sources, *self._letters} if sources.get(name) != self._letters.get(name)]
        self._letters = sources
        for name in changed:
            self._claims.mark(name, self._clock())
        return bool(changed)

    async def _work_on(self, claim: str, surroundings: Surroundings, *, is_long_silent: bool) -> None:
        objects = {manifest["metadata"]["uid"]: manifest for manifest in self._claims.objects(claim)}
        topics = await self._read(objects.values())
        found = self._mirror.topics.get(claim)
        if not topics:
            self._passing.pop(claim, None)
            self._warned.discard(claim)
        views = {} if found is None else {claim: found}
        for plan in plan_topics(topics, views, surroundings, holds=self._holds):
            manifest = objects[plan.topic.uid]
            if not any(isinstance(step, ConfirmLoss) for step in plan.steps):
                self._losses.found(plan.topic.uid)
            finding = await self._do(manifest, plan, surroundings)
            if finding is not None:
                await self._report(manifest, plan.topic, finding, is_long_silent=is_long_silent)

    # ---- steps ----

    async def _do(self, manifest: Manifest, plan: TopicPlan, surroundings: Surroundings) -> Finding | None:
        """Take the steps. Returns what to report then, or None if the object is gone."""
        for step in plan.steps:
            try:
                match step:
                    case ConfirmLoss():
                        what = f"topic {plan.topic.topic_name}"
                        if (held := await self._losses.held(plan.topic.uid, what)) is not None:
                            return await self._hold(manifest, plan, held)
                    case CreateTopic():
                        await self._create(step)
                    case UpdateTopic():
                        await self._update(step)
                    case DeleteTopic():
                        if not await self._delete(manifest, step):
                            return plan.finding
                    case _:
                        if not await self._do_to_object(manifest, step, surroundings):
                            return None
            except StaleOperatorError:
                raise
            except TopicExistsError:
                return plan.finding  # the stream will report that topic
            except CoordinatorBehindError:
                return await self._hold(manifest, plan, behind(f"topic {plan.topic.topic_name}"))
            except RequestError as exc:
                self._claims.mark(plan.topic.topic_name, self._clock() + REFUSED_S)
                return Finding("Refused", f"the brokers refuse it: {exc}", plan.finding.view)
        return plan.finding

    async def _hold(self, manifest: Manifest, plan: TopicPlan, held: Held) -> Finding:
        """Make nothing, and say why. What is reported of the topic stays."""
        topic = plan.topic
        self._claims.mark(topic.topic_name, self._clock() + held.again_s)
        known = topic.status.condition("Ready")
        if held.reason == COORDINATOR_BEHIND and (known is None or known.reason != held.reason) and self._may_tell():
            await self._api.event(manifest, "Warning", held.reason, held.message)
        return Finding(held.reason, held.message, is_passing=held.reason == UNCONFIRMED, keeps_status=True)

    async def _create(self, step: CreateTopic) -> None:
        record = await self._brokers.create_topic(
            step.name, step.partitions, settings_message(step.settings), step.incarnation
        )
        self._mirror.take_created(record)

    async def _update(self, step: UpdateTopic) -> None:
        request = broker_pb2.UpdateTopicRequest(
            name=step.name, incarnation=step.incarnation, partition_count=step.partitions
        )
        if step.changed:
            FieldMask(paths=step.changed).MergeMessage(settings_message(step.settings), request.settings)
            request.settings_mask.extend(step.changed)
        await self._brokers.update_topic(request)

    async def _delete(self, manifest: Manifest, step: DeleteTopic) -> bool:
        """Delete the topic, if the API still says so. Returns False if it does not."""
        if not await self._may_delete(manifest):
            return False
        try:
            await self._brokers.delete_topic(step.name, step.incarnation)
        except UnknownTopicError:
            _log.info("topic_gone_already", topic=step.name)
        return True

    # ---- the report ----

    async def _report(self, manifest: Manifest, topic: Topic, finding: Finding, *, is_long_silent: bool) -> None:
        if not self._is_due(topic, finding, is_long_silent=is_long_silent):
            return
        live, planned = self._mirror.counts.live, self._mirror.counts.planned
        letters = self._letters.get(topic.topic_name, ())
        status = topic_status(topic, finding, time.time(), live, letters, planned)
        if is_in_danger(topic.status):
            self._warned.add(topic.topic_name)  # also by the operator before this one
        if is_news(topic.status, status):
            await self._write_status(manifest, status)
            is_warned = topic.topic_name in self._warned
            for event in topic_events(topic.status, status, live, planned, is_warned=is_warned):
                if self._may_tell():
                    await self._api.event(manifest, event.type, event.reason, event.note)
        if is_in_danger(status):
            self._warned.add(topic.topic_name)
        elif status.is_true("ChainHealthy"):
            self._warned.discard(topic.topic_name)

    def _may_tell(self) -> bool:
        """Whether one more Event about chains may be posted in this minute. Beyond the limit, the log says so once."""
        minute, count = self._events
        now = int(self._clock() // 60)
        self._events = (now, count + 1 if minute == now else 1)
        if self._events[1] == EVENTS_PER_MINUTE_MAX + 1:
            _log.warning("topic_events_held_back", events_per_minute_max=EVENTS_PER_MINUTE_MAX)
        return self._events[1] <= EVENTS_PER_MINUTE_MAX

    def _is_due(self, topic: Topic, finding: Finding, *, is_long_silent: bool) -> bool:
        """Whether to report now. Steps are reported only after 2 s, and brokers that do not answer only after 60 s."""
        is_held = finding.reason in HELD
        waits = finding.is_passing or (finding.keeps_status and not is_held)
        if not waits:
            self._passing.pop(topic.topic_name, None)
            return True
        is_settled = topic.status.observed_generation == topic.metadata.generation and not topic.metadata.is_deleted
        if finding.keeps_status and not is_held and is_settled:
            return is_long_silent and finding.reason == "BrokersSilent"
        now_s = self._clock()
        reason, since_s = self._passing.get(topic.topic_name, ("", now_s))
        if reason != finding.reason:
            since_s = now_s
            self._passing[topic.topic_name] = (finding.reason, since_s)
        if now_s < since_s + PASSING_S:
            self._claims.mark(topic.topic_name, since_s + PASSING_S)
            return False
        return True
