"""One pass over one BrokerCluster: observe, plan, apply, report.

1. Observe from the cache. If the plan asks the brokers something, get the answer and plan again.
2. If the plan marks a disk as lost, or begins or ends the operation, write only that to the status. The next pass
   follows at once.
3. Otherwise take the steps that take nothing away.
4. Before a step that takes something away, observe again from the API itself, and plan again. Take the step only if the
   fresh plan still has it, and only on the object with the same UID.
5. Write the statuses that have changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import structlog
from seriatim_api.errors import SeriatimError, StaleOperatorError
from seriatim_api.v1 import records_pb2

from ..cluster import pki
from ..cluster.brokers import Brokers, Credentials
from ..cluster.kinds import BROKER, BROKER_CLUSTER, BROKER_GROUP, CLAIM, POD, SECRET, SERVICE, Kind, kind_of
from ..cluster.kube import Api, ConflictError, KubeError
from ..plan.absence import planned_names, returning_names
from ..plan.actions import (
    CHILD_REFUSED,
    Action,
    Apply,
    AskCounts,
    AskGate,
    BeginOperation,
    DeclareDead,
    DeleteClaim,
    DeleteObject,
    DeletePod,
    EndOperation,
    MarkLost,
    PlaceAnew,
    Plan,
    RemoveBrokerGroup,
    SetBrokerGroup,
)
from ..plan.cluster import TROUBLE_S
from ..plan.cluster import plan as make_plan
from ..plan.external import external_addresses
from ..plan.observed import (
    ANNOTATION_PLACE_ANEW,
    ANNOTATION_SPREAD_MENDED,
    MOUNTED,
    SPREAD_QUIET_S,
    EtcdView,
    Observed,
)
from ..plan.rolling import plan_hash
from ..resources.cluster_children import ClusterChildren
from ..resources.names import ANNOTATION_REPLACE_AUTHORITY, BROKER_PORT, LABEL_CLUSTER
from ..resources.ownership import belongs_to, tell_owner
from ..resources.pod import pod_in_place
from ..spec.base import Resource, Status
from ..spec.cluster import BrokerCluster
from ..spec.errors import InvalidManifestError
from ..status.cluster import (
    ClusterEvent,
    broker_group_status,
    broker_status,
    cluster_events,
    cluster_status,
    danger,
    disk_events,
    member_events,
)
from .cache import Cache
from .definitions import AGAIN_S, Definitions
from .known import Known
from .objects import NOT_RENEWED, StatusWriter
from .observe import FromApi, FromCache, Source, ask_for_mounts, ask_gate, ask_members, ask_the_unready, observe
from .refusals import Refusals
from .secrets import Certificates, SecretTakenError, ensure_certificates

REAPPLY_S = 600.0
"""Seconds after which an unchanged child is applied again, because some changes by others are not watched."""

CERTIFICATES_S = 60.0
"""Seconds between two looks at the certificates, unless one is due earlier."""

ETCD_SECRET_FILES = ("ca.crt", "tls.crt", "tls.key")
"""What the Secret of `spec.etcd.tlsSecret` has."""

QUESTIONS_MAX = 8
"""The most rounds of questions and plans in one pass."""

UNREADABLE_S = 60.0
"""Seconds between two looks at a cluster with an object that cannot be read. A change of the object starts a pass
earlier."""

UNANSWERED_MAX = 2
"""Steps of one pass that may wait for the API without an answer. One webhook that hangs is enough for that."""

NOT_RENEWED_S = 10.0
"""Seconds for which passes fail until the statuses say that they are old."""

_REFUSED = frozenset({400, 403, 422})
"""Answers of the API server with which it refuses what is written. With others it cannot write it now."""

CERTIFICATE_INVALID = "CertificateInvalid"

CERTIFICATES = "Secrets with certificates"
"""The certificates among the writes that the API may refuse."""

WATCHED = frozenset({"BrokerCluster", "BrokerGroup", "Broker", "Pod", "PersistentVolumeClaim", "Node"})

Manifest = dict[str, Any]

_log = structlog.get_logger(__name__)


class ClusterReconciler:
    """Makes passes over BrokerClusters, and keeps a client of the brokers of each.

    Args:
        api: The API, for all reads and writes.
        cache: The objects that the watches reported.
        known: What the passes over topics know.
        make_children: Makes the builders for a cluster.
        epoch: Returns the epoch of the operator's Lease.
        domain: The DNS domain of the Kubernetes cluster, for the names in certificates.
        connect: Makes the client of a cluster's brokers.
        settle: The time until a written Secret is in use everywhere.
        spread_quiet_s: Seconds for which nothing else must be wrong before the operator mends the spread by itself.
        clock: Returns monotonic seconds.
        etcd: Returns the view of the etcd with these endpoints, if it is that of the operator's release.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        known: Known,
        make_children: Callable[[BrokerCluster], ClusterChildren],
        epoch: Callable[[], int],
        domain: str,
        connect: Callable[[str, Callable[[], int]], Brokers] = Brokers,
        settle: timedelta = pki.SETTLE_TIME,
        spread_quiet_s: float = SPREAD_QUIET_S,
        clock: Callable[[], float] = time.monotonic,
        etcd: Callable[[Iterable[str]], EtcdView | None] = lambda _: None,
    ) -> None:
        self._api = api
        self._cache = cache
        self._known = known
        self._make_children = make_children
        self._epoch = epoch
        self._domain = domain
        self._settle = settle
        self._spread_quiet_s = spread_quiet_s
        self._connect = connect
        self._clock = clock
        self._etcd = etcd
        self._brokers: dict[tuple[str, str], Brokers] = {}
        self._applied: dict[tuple[str, str, str], tuple[str, float]] = {}
        self._certificates: dict[tuple[str, str], tuple[str, float, Certificates]] = {}
        self._etcd_secrets: dict[tuple[str, str], tuple[str, float]] = {}  # the one that was complete, and until when
        self._external_hosts: dict[tuple[str, str], tuple[str, ...]] = {}
        self._cluster_ids: dict[tuple[str, str], str] = {}
        self._taken: defaultdict[tuple[str, str], dict[tuple[str, str], str]] = defaultdict(dict)  # `Observed.taken`
        self._refusals: dict[tuple[str, str], Refusals] = {}
        self._failing_since: dict[tuple[str, str], float] = {}  # by cluster: when its passes began to fail
        self._warned: dict[tuple[str, str], str] = {}  # by cluster: the reason of the last Event, if it was a Warning
        self._uids: dict[tuple[str, str], str] = {}
        self._definitions = Definitions(api)
        self._statuses = {kind.kind: StatusWriter(api, cache, kind) for kind in (BROKER_CLUSTER, BROKER_GROUP, BROKER)}

    def brokers_of(self, namespace: str, name: str) -> Brokers:
        """The client of a cluster's brokers, which the passes over topics and consumer groups use too."""
        key = (namespace, name)
        if key not in self._brokers:
            self._brokers[key] = self._connect(name, self._epoch)
        return self._brokers[key]

    async def close(self) -> None:
        """Close the connections to all brokers."""
        for brokers in self._brokers.values():
            await brokers.close()

    # ---- a pass ----

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Make one pass.

        Returns:
            After how many seconds to make the next one; None if the cluster is gone or being deleted.

        Raises:
            KubeError: The API refused a read or a status, or did not answer. If that lasts, the statuses say so.
            StaleOperatorError: A newer operator acts: this one must end.
        """
        cached = FromCache(self._cache, self._api, WATCHED)
        manifest = await cached.one(BROKER_CLUSTER, namespace, name)
        if manifest is None:
            await self._forget(namespace, name)
            return None
        if manifest["metadata"].get("deletionTimestamp"):
            return None
        uid = str(manifest["metadata"].get("uid"))
        if self._uids.setdefault((namespace, name), uid) != uid:
            await self._forget(namespace, name)  # a watch may report the next cluster of this name first
            self._uids[namespace, name] = uid
        try:
            return await self._pass(cached, manifest)
        except InvalidManifestError as exc:
            await self._report_unreadable(cached, manifest, exc)
            self._failing_since.pop((namespace, name), None)
            return UNREADABLE_S
        except KubeError as exc:
            since_s = self._failing_since.setdefault((namespace, name), self._clock())
            if self._clock() - since_s >= NOT_RENEWED_S:
                await self._report_not_renewed(cached, manifest, exc)
            raise

    async def _pass(self, cached: Source, manifest: Manifest) -> float | None:
        cluster = BrokerCluster.from_manifest(manifest)
        namespace, name = cluster.namespace, cluster.name
        refusals = self._refusals.setdefault((namespace, name), Refusals(self._clock))
        problems: list[tuple[str, str]] = []
        certificates = await self._ensure_certificates(cluster, manifest, problems, refusals)
        problems += await self._etcd_secret_problems(cluster)
        brokers = self.brokers_of(namespace, name)
        self._reach(brokers, namespace, name, certificates)
        observed, plan, make = await self._plan(cached, brokers, namespace, name)
        if any(isinstance(action, MarkLost | DeclareDead) for action in plan.actions):
            # Marks and certificates cannot be undone, and the cache may be behind. So the API is asked before them.
            observed, plan, make = await self._plan(FromApi(self._api), brokers, namespace, name)
        if observed is None or make is None:
            return None
        live = _answering(observed, self._known.told_live(namespace, name))
        if live is not None:
            planned, is_told = planned_names(observed), observed.members is not None
            self._known.note_live(namespace, name, live, planned, is_told=is_told)
        observed = replace(
            observed,
            certificate_names=certificates.broker_names,
            authority=certificates.authority,
            etcd=self._etcd(observed.cluster.spec.etcd.endpoints),
        )
        if observed.etcd is not None and not observed.etcd.has_majority:
            plan.look_again(TROUBLE_S)  # the brokers may have had their answers just before they lost etcd
        if certificates.problem and not problems:
            problems.append((CERTIFICATE_INVALID, certificates.problem))
        outdated = await self._definitions.problems()
        if outdated:
            plan.look_again(AGAIN_S)
        plan.problems += [*problems, *outdated]
        hosts = external_addresses(observed).hosts
        is_named = hosts == self._external_hosts.get((namespace, name), ())
        self._external_hosts[namespace, name] = hosts
        done = await self._do(observed, plan, make, brokers, refusals)
        await self._learn_id(brokers, observed)
        await self._tell_refusals(observed, plan, refusals)
        self._failing_since.pop((namespace, name), None)  # each status is renewed from here on, unless it is refused
        await self._report(observed, plan, make, refusals)
        return 0.0 if done or not is_named else plan.again_s  # the next pass puts new hosts into the certificate

    async def _plan(
        self, source: Source, brokers: Brokers, namespace: str, name: str
    ) -> tuple[Observed | None, Plan, ClusterChildren | None]:
        """Observe and plan until the plan has no more questions, in at most 8 rounds."""
        observed = await observe(source, brokers, namespace, name, counts=False)
        if observed is None:
            return None, Plan(), None
        observed = replace(
            observed,
            chains=self._known.chains(namespace, name),
            spread_quiet_s=self._spread_quiet_s,
            taken=dict(self._taken[namespace, name]),
            refused=self._refusals[namespace, name].failing(),
        )
        addresses = external_addresses(observed).brokers
        make = replace(self._make_children(observed.cluster_in_force), external_addresses=addresses)
        observed = await ask_the_unready(observed, self._credentials_of(namespace, name))
        observed = await ask_for_mounts(observed, self._api)
        if observed.members is None and brokers.is_reachable:
            observed = replace(observed, is_etcd_silent=await brokers.is_any_there())
        result = Plan()
        for _ in range(QUESTIONS_MAX):
            result = make_plan(observed, make)
            gates = [action.broker for action in result.actions if isinstance(action, AskGate)]
            counts = any(isinstance(action, AskCounts) for action in result.actions)
            if not gates and not counts:
                break
            if counts:
                observed = replace(observed, members=await ask_members(brokers, counts=True))
            answers = await asyncio.gather(*(ask_gate(brokers, broker) for broker in gates))
            observed = replace(observed, gates={**observed.gates, **{a.broker: a for a in answers}})
        return observed, result, make

    # ---- doing ----

    async def _do(
        self, observed: Observed, plan: Plan, make: ClusterChildren, brokers: Brokers, refusals: Refusals
    ) -> bool:
        """Take the steps of a plan. Returns True if the next pass should follow at once.

        A step that the API refuses holds up no other. Only if it answers nothing at all, the others are left for later,
        because each would wait for its own deadline.
        """
        about = observed.cluster.to_manifest()
        if any(isinstance(action, MarkLost | BeginOperation | EndOperation) for action in plan.actions):
            for action in plan.actions:
                await self._tell_mark(about, action)
            return True
        changed, unanswered = False, 0
        for action in [a for a in plan.actions if not a.is_disruptive] + plan.disruptive:
            content = _digest(action.manifest) if isinstance(action, Apply) else ""
            if unanswered >= UNANSWERED_MAX or not refusals.is_due(action.about, content):
                continue
            try:
                if isinstance(action, Apply):
                    changed |= await self._apply(action.manifest, content, observed.cluster)
                    if self._taken[observed.cluster.namespace, observed.cluster.name] != observed.taken:
                        return True  # what else is done depends on it
                elif action.is_disruptive:
                    changed |= await self._take_away(about, action, observed.cluster, brokers)
                else:
                    changed |= await self._ask(about, action, observed, brokers)
            except KubeError as exc:
                _log.warning("step_refused", step=action.about, error=str(exc))
                refusals.note(action.about, exc, content)
                unanswered += exc.status == 0
                if action.about.startswith(MOUNTED) and action.about not in observed.refused:
                    return True  # with which settings pods are made, and whether any is restarted, depends on it
            else:
                refusals.clear(action.about)
        self._forget_taken(observed.cluster, plan)
        return changed

    def _forget_taken(self, cluster: BrokerCluster, plan: Plan) -> None:
        """Forget taken names that the cluster does not need any more. `_ensure_certificates` does it for Secrets."""
        needed = {(a.manifest["kind"], a.manifest["metadata"]["name"]) for a in plan.actions if isinstance(a, Apply)}
        taken = self._taken[cluster.namespace, cluster.name]
        for each in [each for each in taken if each not in needed and each[0] != SECRET.kind]:
            del taken[each]

    async def _apply(self, manifest: Mapping[str, Any], digest: str, cluster: BrokerCluster) -> bool:
        """Apply a child. Returns False if the same manifest was applied before, or an object of others has the name.

        Raises:
            KubeError: The API refuses the child or does not answer.
        """
        wanted = dict(manifest)
        kind, metadata = kind_of(wanted), wanted["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        key = (kind.kind, namespace, name)
        applied, at_s = self._applied.get(key, ("", 0.0))
        there = self._cache.get(kind.kind, namespace, name)
        is_there = kind.kind not in WATCHED or there is not None
        if applied == digest and is_there and self._clock() - at_s < REAPPLY_S:
            return False
        taken = self._taken[cluster.namespace, cluster.name]
        if there is None and (there := await self._api.get(kind, namespace, name)) is not None:
            wanted["metadata"] = {**metadata, "uid": there["metadata"]["uid"]}
        if there is not None and not belongs_to(there, cluster):
            taken[kind.kind, name] = tell_owner(there)
            return False
        taken.pop((kind.kind, name), None)
        if kind.kind == POD.kind and there is not None:
            wanted = pod_in_place(there, wanted)
        made = await self._api.apply(wanted, force=there is not None)
        if kind.kind in WATCHED:
            self._cache.put(kind.kind, made)
        self._applied[key] = (digest, self._clock())
        return applied != digest

    async def _ask(self, about: Manifest, action: Action, observed: Observed, brokers: Brokers) -> bool:
        """Take a step that the brokers carry out, or delete an object. The next pass plans a refused step again.

        Raises:
            KubeError: The API refuses the deletion or does not answer.
        """
        try:
            if isinstance(action, DeclareDead):
                await brokers.declare_dead(action.broker, action.incarnation, action.run, action.evidence)
                note = f"member run {action.run} of {action.broker} has ended: {action.evidence}"
                await self._api.event(about, "Normal", "DeathCertificate", note)
            elif isinstance(action, SetBrokerGroup):
                intent = records_pb2.BrokerGroupIntent.Value(f"BROKER_GROUP_INTENT_{action.intent}")
                await brokers.set_broker_group(action.group, intent, action.weight)
                note = f"broker group {action.group} is {action.intent.lower()}: {action.why}"
                await self._api.event(about, "Normal", "GroupIntent", note)
            elif isinstance(action, RemoveBrokerGroup):
                await brokers.remove_broker_group(action.group)
                await self._api.event(
                    about, "Normal", "GroupForgotten", f"the brokers forgot broker group {action.group}"
                )
            elif isinstance(action, DeleteObject):
                kind = {each.kind: each for each in (BROKER, BROKER_GROUP, SERVICE)}[action.kind]
                await self._delete(kind, observed.cluster.namespace, action.name, action.uid)
            else:
                return False
        except StaleOperatorError:
            raise
        except SeriatimError as exc:
            _log.warning("brokers_refuse", step=str(action), error=str(exc))
            return False
        return True

    async def _take_away(self, about: Manifest, action: Action, cluster: BrokerCluster, brokers: Brokers) -> bool:
        """Take a step that takes something away, if a plan from a fresh look at the API still has it.

        Raises:
            KubeError: The API refuses the step or a read, or does not answer.
        """
        fresh, plan, _ = await self._plan(FromApi(self._api), brokers, cluster.namespace, cluster.name)
        still = [again for again in plan.disruptive if _same_target(again, action)]
        if fresh is None or not still:
            _log.info("step_not_taken", step=str(action))
            return False
        action = still[0]
        try:
            if isinstance(action, DeletePod):
                pod = await self._api.get(POD, cluster.namespace, action.name)
                warning = "Warning" if action.reason in ("DiskLost", "PodEnded") else "Normal"
                await self._api.event(about, warning, action.reason, action.note, related=pod)
                grace_s = 0 if action.at_once else None
                await self._delete(POD, cluster.namespace, action.name, action.uid, grace_s)
            elif isinstance(action, DeleteClaim):
                type_ = "Warning" if action.is_lost else "Normal"
                await self._api.event(about, type_, "ClaimDeleted", f"claim {action.name}: {action.reason}")
                await self._delete(CLAIM, cluster.namespace, action.name, action.uid)
            elif isinstance(action, PlaceAnew):
                await self._place_anew(about, action, cluster)
        except ConflictError as exc:
            _log.info("changed_meanwhile", step=str(action), error=str(exc))
        return True

    async def _place_anew(self, about: Manifest, action: PlaceAnew, cluster: BrokerCluster) -> None:
        """Note it on the cluster, ask for it, and report it: in this order, for which `plan.spread` gives the
        reason."""
        for kind, name, annotation, value in (
            (BROKER_CLUSTER, cluster.name, ANNOTATION_SPREAD_MENDED, action.record),
            (BROKER_GROUP, action.object, ANNOTATION_PLACE_ANEW, "true"),
        ):
            patch = {"metadata": {"annotations": {annotation: value}}}
            self._cache.put(kind.kind, await self._api.merge(kind, cluster.namespace, name, patch))
        await self._api.event(about, "Normal", "PlacedAnew", action.note)

    async def _delete(self, kind: Kind, namespace: str, name: str, uid: str, grace_s: int | None = None) -> None:
        was_there = await self._api.delete(kind, namespace, name, uid=uid, grace_s=grace_s)
        found = self._cache.get(kind.kind, namespace, name)
        if not was_there and found is not None and found["metadata"].get("uid") == uid:
            self._cache.drop(kind.kind, found)
        self._applied.pop((kind.kind, namespace, name), None)

    async def _tell_mark(self, about: Manifest, action: Action) -> None:
        if isinstance(action, MarkLost):
            note = f"the disk of {action.broker_object} is lost: {action.proof}"
            await self._api.event(about, "Warning", "DiskLost", note)
        elif isinstance(action, BeginOperation):
            note = f"{action.kind} of {action.object}: {action.reason}"
            await self._api.event(about, "Normal", "OperationBegun", note)
        elif isinstance(action, EndOperation):
            await self._api.event(about, "Normal", "OperationEnded", action.note)

    # ---- reporting ----

    async def _tell_refusals(self, observed: Observed, plan: Plan, refusals: Refusals) -> None:
        """Put what the API refuses again and again into the plan's report, and post an Event about each once."""
        about = observed.cluster.to_manifest()
        reported = [observed.cluster, *observed.groups.values(), *observed.brokers.values()]
        refusals.keep({CERTIFICATES, *(action.about for action in plan.actions), *map(_status_of, reported)})
        plan.refused = refusals.lasting()
        plan.blocked_by += plan.refusals
        for write, why in refusals.take_new():
            await self._api.event(about, "Warning", CHILD_REFUSED, f"{write} is refused: {why}")
        if (again_s := refusals.next_s()) is not None:
            plan.look_again(again_s)

    async def _report(self, observed: Observed, plan: Plan, make: ClusterChildren, refusals: Refusals) -> None:
        """Write the statuses that have changed. If one is refused, the others are written all the same.

        A status that is refused is tried again like every other write, and reported by an Event, as no status can
        report it.

        Raises:
            KubeError: The API did not answer, or cannot write a status now; this is the first such error.
        """
        reports: list[tuple[Resource, Status, list[ClusterEvent]]] = []
        for broker in observed.brokers.values():
            of_broker = broker_status(observed, broker, plan)
            reports.append((broker, of_broker, disk_events(broker, of_broker)))
        for group in observed.groups.values():
            told = broker_group_status(observed, group)
            reports.append((group, told, member_events(observed, group, told)))
        key = (observed.cluster.namespace, observed.cluster.name)
        cluster_id = self._cluster_ids.get(key, "")
        hash_ = plan_hash(observed, make) if plan.planned else ""
        whole = cluster_status(observed, plan, hash_, cluster_id)
        warned = danger(observed.cluster.status) or self._warned.get(key, "")  # the operator before may have warned
        reports.append((observed.cluster, whole, cluster_events(observed.cluster.status, whole, warned)))
        degraded = whole.condition("Degraded")
        is_well = degraded is not None and degraded.status == "False"
        self._warned[key] = "" if is_well else danger(whole) or warned
        failed: list[KubeError] = []
        events: list[ClusterEvent] = []
        for item, status, news in reports:
            before: Status = item.status  # type: ignore[attr-defined]
            if status == before or item.metadata.is_deleted:
                refusals.clear(_status_of(item))
                events += news
                continue
            if not refusals.is_due(_status_of(item)):
                continue  # its Events were posted when it was refused
            events += news
            if item.name in plan.held and _message_of(status) != _message_of(before):
                await self._api.event(item.to_manifest(), "Warning", "DiskLossHeld", plan.held[item.name])
            try:
                await self._statuses[item.KIND].write_status(item.to_manifest(), status)
            except KubeError as exc:
                if isinstance(exc, ConflictError) or exc.status not in _REFUSED:
                    failed.append(exc)
                else:
                    refusals.note(_status_of(item), exc)
            else:
                refusals.clear(_status_of(item))
        for event in events:
            await self._api.event(observed.cluster.to_manifest(), event.type, event.reason, event.note)
        if failed:
            raise failed[0]
        if (again_s := refusals.next_s()) is not None:
            plan.look_again(again_s)

    async def _report_unreadable(self, source: Source, cluster: Manifest, error: InvalidManifestError) -> None:
        """Report, on the cluster and on the object that cannot be read, that the operator changes nothing."""
        await self._statuses[BROKER_CLUSTER.kind].report_unreadable(cluster, error)
        if error.kind != BROKER_CLUSTER.kind:
            kind = {BROKER.kind: BROKER, BROKER_GROUP.kind: BROKER_GROUP}[error.kind]
            found = await source.one(kind, error.namespace, error.name)
            if found is not None:
                await self._statuses[kind.kind].report_unreadable(found, error)

    async def _report_not_renewed(self, source: Source, cluster: Manifest, error: KubeError) -> None:
        """Report that passes fail, so that what an earlier pass reported is not taken for the present state."""
        metadata = cluster["metadata"]
        message = f"what the status says is old, because the operator's passes fail: {error}"
        for kind in (BROKER_CLUSTER, BROKER_GROUP, BROKER):
            found = [cluster]
            if kind is not BROKER_CLUSTER:
                found = list(await source.all(kind, metadata["namespace"], metadata["name"]))
            for manifest in found:
                try:
                    if await self._statuses[kind.kind].report_not_renewed(manifest, message) and manifest is cluster:
                        await self._api.event(cluster, "Warning", NOT_RENEWED, message)
                except KubeError as exc:
                    _log.info("status_not_written", kind=kind.kind, error=str(exc))
                    if exc.status == 0:
                        return

    # ---- surroundings ----

    async def _ensure_certificates(
        self, cluster: BrokerCluster, manifest: Manifest, problems: list[tuple[str, str]], refusals: Refusals
    ) -> Certificates:
        key = (cluster.namespace, cluster.name)
        hosts = self._external_hosts.get(key, ())
        is_external = cluster.spec.external is not None
        asked = cluster.metadata.annotations.get(ANNOTATION_REPLACE_AUTHORITY, "")
        said = json.dumps([cluster.spec.tls.to_manifest(), is_external, hosts, asked], sort_keys=True)
        held = self._certificates.get(key)
        if held is not None and held[0] == said and self._clock() < held[1]:
            return held[2]
        before = held[2] if held is not None else Certificates(None)
        if not refusals.is_due(CERTIFICATES, said):
            return before
        taken = self._taken[key]
        for each in [each for each in taken if each[0] == SECRET.kind]:
            del taken[each]
        try:
            certificates = await ensure_certificates(self._api, cluster, self._domain, hosts, self._settle)
        except pki.PkiError as exc:
            problems.append((CERTIFICATE_INVALID, str(exc)))
            return before
        except SecretTakenError as exc:
            taken[SECRET.kind, exc.name] = exc.owner
            return before
        except KubeError as exc:
            refusals.note(CERTIFICATES, exc, said)
            return before
        refusals.clear(CERTIFICATES)
        for reason, note in certificates.told:
            await self._api.event(manifest, "Normal", reason, note)
        look_s = min(CERTIFICATES_S, certificates.next_look_s or CERTIFICATES_S)
        self._certificates[key] = (said, self._clock() + max(1.0, look_s), certificates)
        return certificates

    async def _etcd_secret_problems(self, cluster: BrokerCluster) -> list[tuple[str, str]]:
        """Whether the Secret for etcd is there: without it, no pod starts, and a pod only says that it is created."""
        key, name = (cluster.namespace, cluster.name), cluster.spec.etcd.tls_secret
        known, until_s = self._etcd_secrets.get(key, ("", 0.0))
        if name is None or (name == known and self._clock() < until_s):
            return []
        try:
            found = await self._api.get(SECRET, cluster.namespace, name)
        except KubeError as exc:
            _log.info("etcd_secret_not_read", cluster=cluster.name, error=str(exc))
            return []
        missing = [file for file in ETCD_SECRET_FILES if file not in ((found or {}).get("data") or {})]
        if not missing:
            self._etcd_secrets[key] = (name, self._clock() + CERTIFICATES_S)
            return []
        what = f"has no {', '.join(missing)}" if found is not None else "is not there"
        files = ", ".join(ETCD_SECRET_FILES)
        text = f"Secret {name} for etcd {what}: give it {files}, or name another Secret in spec.etcd.tlsSecret"
        return [("EtcdSecretInvalid", text)]

    def _credentials_of(self, namespace: str, name: str) -> Credentials | None:
        held = self._certificates.get((namespace, name))
        return held[2].credentials if held is not None else None

    def _reach(self, brokers: Brokers, namespace: str, name: str, certificates: Certificates) -> None:
        """Give the client the addresses of the brokers whose pods run, ready ones first."""
        addresses = []
        for pod in self._cache.of(POD.kind, namespace):
            labels, status = pod["metadata"].get("labels") or {}, pod.get("status") or {}
            if labels.get(LABEL_CLUSTER) != name or pod["metadata"].get("deletionTimestamp"):
                continue
            if status.get("podIP") and status.get("phase") == "Running":
                ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
                addresses.append((not ready, f"{status['podIP']}:{BROKER_PORT}"))
        brokers.reach([address for _, address in sorted(addresses)], certificates.credentials)

    async def _learn_id(self, brokers: Brokers, observed: Observed) -> None:
        key = (observed.cluster.namespace, observed.cluster.name)
        if key in self._cluster_ids or observed.members is None:
            return
        try:
            self._cluster_ids[key] = (await brokers.describe_cluster()).cluster_id
        except StaleOperatorError:
            raise
        except SeriatimError as exc:
            _log.info("cluster_id_unknown", cluster=observed.cluster.name, error=str(exc))

    async def _forget(self, namespace: str, name: str) -> None:
        brokers = self._brokers.pop((namespace, name), None)
        if brokers is not None:
            await brokers.close()
        self._certificates.pop((namespace, name), None)
        self._etcd_secrets.pop((namespace, name), None)
        self._external_hosts.pop((namespace, name), None)
        self._cluster_ids.pop((namespace, name), None)
        self._warned.pop((namespace, name), None)
        self._uids.pop((namespace, name), None)
        self._taken.pop((namespace, name), None)
        self._refusals.pop((namespace, name), None)
        self._failing_since.pop((namespace, name), None)
        self._known.forget(namespace, name)


def _status_of(item: Resource) -> str:
    """The write of an object's status, by the name under which it is refused."""
    return f"status of {item.KIND} {item.name}"


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _message_of(status: Status) -> str:
    """The message about the disk in a Broker's status."""
    found = status.condition("DiskHealthy")
    return found.message if found is not None else ""


def _same_target(one: Action, other: Action) -> bool:
    """Whether two steps take away the same object, by name and UID."""
    if isinstance(one, DeletePod) and isinstance(other, DeletePod):
        return (one.name, one.uid) == (other.name, other.uid)
    if isinstance(one, DeleteClaim) and isinstance(other, DeleteClaim):
        return (one.name, one.uid) == (other.name, other.uid)
    if isinstance(one, PlaceAnew) and isinstance(other, PlaceAnew):
        return (one.object, one.uid) == (other.object, other.uid)
    return False


def _answering(observed: Observed, told: frozenset[str] | None) -> frozenset[str] | None:
    """Names of the brokers that answer, and their disks; None if it is not known.

    While etcd is silent, brokers do not show which of them run. Then those count that answered when brokers last
    reported it, except those whose pod is not ready now.
    """
    if observed.members is not None:
        return observed.live_brokers | observed.live_disks | returning_names(observed)
    if told is None or not observed.is_etcd_silent:
        return None
    ready = {pod.name for pod in observed.pods.values() if pod.is_ready}
    unready = {f"{b.spec.group}-{b.spec.slot}" for b in observed.all_holders() if b.name not in ready}
    return frozenset(name for name in told if name.partition("#")[0] not in unready)
