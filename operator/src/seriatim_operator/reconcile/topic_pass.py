"""One pass over the Topics of a cluster: what changed is planned, done and reported.

The brokers tell what they have over a stream that is kept open (`topics.py`); objects come from the cache. A pass takes
the claims that are due, some at once, and is never held up by one of them: a step that fails comes again after a pause
of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog
from seriatim_api.errors import RequestError, SeriatimError, StaleOperatorError, TopicExistsError, UnknownTopicError
from seriatim_api.v1 import broker_pb2

from ..cluster.kinds import TOPIC
from ..cluster.kube import Api, KubeError
from ..plan.topics import (
    TOPIC_FINALIZER,
    CreateTopic,
    DeleteTopic,
    Finding,
    Surroundings,
    TopicPlan,
    UpdateTopic,
    plan_topics,
)
from ..spec.errors import InvalidManifestError
from ..spec.topic import Topic
from ..status.topics import is_news, topic_status
from .asking import TopicBrokers, run_all
from .cache import Cache
from .claims import Claims
from .objects import Writer
from .topic_mirror import TopicMirror, settings_message

CLAIMS_AT_ONCE: Final = 16
"""Topics that are worked on side by side: a creation waits for the brokers' disks most of the time."""

CLAIMS_PER_PASS: Final = 256
"""After so many the pass ends and another begins, so that what changed meanwhile is seen."""

PASSING_S: Final = 2.0
"""A step that takes longer is reported; others would be written twice, before and after."""

REFUSED_S: Final = 60.0
"""What the brokers refuse is tried again after that, for their minds may change with their versions."""

TOLD_S: Final = 0.5
"""Changes of chains are gathered for so long: a failover moves many at once."""

Manifest = dict[str, Any]

_log = structlog.get_logger(__name__)


class TopicPass:
    """Works on the Topics of one cluster, pass by pass.

    Args:
        api: Writes to objects, and reads before anything is deleted.
        cache: What the watches told.
        namespace: Of the cluster and of its objects.
        cluster: Its name.
        brokers: Whom to ask.
        mirror: What they told; somebody else fills it and calls `told`.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        namespace: str,
        cluster: str,
        brokers: TopicBrokers,
        mirror: TopicMirror,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._brokers = brokers
        self._mirror = mirror
        self._clock = clock
        self._api = api
        self._writer = Writer(api, cache, TOPIC, TOPIC_FINALIZER)
        self._claims: Claims[str] = Claims(cache, TOPIC.kind, namespace, cluster, _claim_of)
        self._passing: dict[str, tuple[str, float]] = {}  # what each topic waits for, and since when

    def __len__(self) -> int:
        return len(self._claims)

    def told(self, names: Iterable[str]) -> float:
        """The brokers told something about these topics; returns after how many seconds to look at them."""
        now_s, soonest_s = self._clock(), TOLD_S
        for name in names:
            pause_s = 0.0 if name in self._passing else TOLD_S
            self._claims.mark(name, now_s + pause_s)
            soonest_s = min(soonest_s, pause_s)
        return soonest_s

    def look_at_all(self) -> None:
        """The surroundings have changed, which concerns every object."""
        self._claims.mark_all(self._clock())

    def scan(self) -> None:
        """Find out which objects changed."""
        self._claims.scan(self._clock())

    async def work(self, surroundings: Surroundings, *, is_long_silent: bool) -> float | None:
        """Work on what is due; returns after how many seconds to come again.

        Raises:
            StaleOperatorError: A newer operator acts: this one must end.
        """
        names = self._claims.take(self._clock(), CLAIMS_PER_PASS)
        gate = asyncio.Semaphore(CLAIMS_AT_ONCE)
        await run_all(self._work_in_turn(gate, name, surroundings, is_long_silent) for name in names)
        next_s = self._claims.next_s()
        return None if next_s is None else max(0.0, next_s - self._clock())

    async def _work_in_turn(
        self, gate: asyncio.Semaphore, name: str, surroundings: Surroundings, is_long_silent: bool
    ) -> None:
        async with gate:
            try:
                await self._work_on(name, surroundings, is_long_silent=is_long_silent)
            except (SeriatimError, KubeError) as exc:
                if isinstance(exc, StaleOperatorError):
                    raise
                pause_s = self._claims.failed(name, self._clock())
                _log.info("topic_failed", topic=name, again_s=pause_s, error=str(exc))
            else:
                self._claims.succeeded([name])

    async def _work_on(self, name: str, surroundings: Surroundings, *, is_long_silent: bool) -> None:
        objects = {manifest["metadata"]["uid"]: manifest for manifest in self._claims.objects(name)}
        topics = await self._read(objects.values())
        found = self._mirror.topics.get(name)
        if not topics:
            self._passing.pop(name, None)
        for plan in plan_topics(topics, {} if found is None else {name: found}, surroundings):
            manifest = objects[plan.topic.uid]
            finding = await self._do(manifest, plan, surroundings)
            if finding is not None:
                await self._report(manifest, plan.topic, finding, is_long_silent=is_long_silent)

    async def _read(self, manifests: Iterable[Manifest]) -> list[Topic]:
        """The objects that can be read; the others are told so."""
        topics = []
        for manifest in manifests:
            try:
                topics.append(Topic.from_manifest(manifest))
            except InvalidManifestError as exc:
                await self._writer.report_unreadable(manifest, exc)
        return topics

    # ---- steps ----

    async def _do(self, manifest: Manifest, plan: TopicPlan, surroundings: Surroundings) -> Finding | None:
        """Take the steps; what is then to be reported, or None if the object is gone."""
        for step in plan.steps:
            try:
                match step:
                    case CreateTopic():
                        await self._create(step)
                    case UpdateTopic():
                        await self._update(step)
                    case DeleteTopic():
                        if not await self._delete(plan.topic, step):
                            return plan.finding
                    case _:
                        if not await self._writer.do(manifest, step, surroundings):
                            return None
            except StaleOperatorError:
                raise
            except TopicExistsError:
                return plan.finding  # the stream is about to tell which
            except RequestError as exc:
                self._claims.mark(plan.topic.topic_name, self._clock() + REFUSED_S)
                return Finding("Refused", f"the brokers refuse it: {exc}", plan.finding.view)
        return plan.finding

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
            wanted = settings_message(step.settings)
            for name in step.changed:
                setattr(request.settings, name, getattr(wanted, name))
            request.settings_mask.extend(step.changed)
        await self._brokers.update_topic(request)

    async def _delete(self, topic: Topic, step: DeleteTopic) -> bool:
        """Delete the topic, if the API itself still says so; False if it does not."""
        fresh = await self._api.get(TOPIC, topic.namespace, topic.name)
        if fresh is None:
            return False
        now = Topic.from_manifest(fresh)
        is_meant = now.uid == topic.uid and now.metadata.is_deleted and now.spec.deletion_policy == "Delete"
        if not is_meant:
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
        status = topic_status(topic, finding, time.time())
        if is_news(topic.status, status):
            written = await self._writer.write_status(manifest, status)
            if written is not None:
                self._claims.seen(written)

    def _is_due(self, topic: Topic, finding: Finding, *, is_long_silent: bool) -> bool:
        """Whether it is time to report; steps that are soon over, and brokers that are soon back, are not."""
        waits = finding.is_passing or finding.keeps_status
        if not waits:
            self._passing.pop(topic.topic_name, None)
            return True
        is_settled = topic.status.observed_generation == topic.metadata.generation and not topic.metadata.is_deleted
        if finding.keeps_status and is_settled:
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


def _claim_of(manifest: Manifest) -> str:
    """The topic that an object stands for, also of one that cannot be read as a whole."""
    return str(manifest["spec"].get("name") or manifest["metadata"]["name"])
