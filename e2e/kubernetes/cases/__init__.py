"""The cases, in the order in which they run. A case is a coroutine with a `Stage` as its argument.

installing   from nothing to the first accepted message
calm         no fault: how much the machine itself delays traffic
pods         a pod is deleted, a container is killed
nodes        a node loses its power, is lost for good, or is drained
disks        disks are swapped, emptied, older, another cluster's, or declared lost
changes      settings, image and size change under traffic
corrections  specs with a wrong word, and their correction
chart        Helm: its own test, upgrade, rollback, uninstall
upgrading    upgrade from the version before

operators    the operator is dead, there are two, or it has two thousand topics
strangers    what belongs to others: a Service, a second operator, a kind that goes and comes back
etcd         members of etcd are frozen, slow, restarted, or lose a disk
snapshots    etcd loses all disks, and is restored or begins without its data
states       what users and Prometheus learn while etcd or the operator is away
alarms       Warnings of each planned act and each fault

consuming    a parked key of a key-ordered consumer group
outside      clients over node ports and load balancers
spark        a pipeline loses executor, driver and node; applications are submitted
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from e2e.kubernetes.cases import (
    alarms,
    calm,
    changes,
    chart,
    consuming,
    corrections,
    disks,
    etcd,
    installing,
    nodes,
    operators,
    outside,
    pods,
    snapshots,
    spark,
    states,
    strangers,
    upgrading,
)
from e2e.kubernetes.stage import Stage


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    Attributes:
        name: The name for humans and for --only.
        run: The function that runs it.
        quick: Whether it is one of the few cases of QUICK=1.
        needs_previous: Whether it begins with the version before this one.
        needs_spark: Whether it runs Spark.
    """

    name: str
    run: Callable[[Stage], Awaitable[None]]
    quick: bool = False
    needs_previous: bool = False
    needs_spark: bool = False


INSTALL: Final = Case("install", installing.install, quick=True)
"""This case is always the first. The others use what it installs."""

CASES: Final = (
    Case("topic applied", installing.topic_applied, quick=True),
    Case("nothing broken", calm.nothing_broken, quick=True),
    Case("master pod deleted", pods.master_pod_deleted, quick=True),
    Case("container killed", pods.container_killed, quick=True),
    Case("node lost", nodes.node_lost, quick=True),
    Case("node of etcd's leader lost", nodes.node_of_etcd_leader_lost),
    Case("settings rolled", changes.settings_rolled, quick=True),
    Case("image rolled", changes.image_rolled),
    Case("image corrected", corrections.image_corrected),
    Case("placement corrected", corrections.placement_corrected, quick=True),
    Case("child refused", corrections.child_refused, quick=True),
    Case("quota corrected", corrections.quota_corrected),
    Case("pull secret corrected", corrections.pull_secret_corrected),
    Case("name taken", strangers.name_taken, quick=True),
    Case("other operator", strangers.other_operator),
    Case("kind put back", strangers.kind_put_back),
    Case("node drained", nodes.node_drained),
    Case("operator dead", operators.operator_dead),
    Case("operator deleted", operators.operator_deleted),
    Case("two operators", operators.two_operators),
    Case("operator away", states.operator_away),
    Case("metrics read", states.metrics_read, quick=True),
    Case("key parked", consuming.key_parked, quick=True),
    Case("reached from outside", outside.reached_from_outside),
    Case("many topics", operators.many_topics),
    Case("disks swapped", disks.disks_swapped),
    Case("disk emptied", disks.disk_emptied),
    Case("disk older", disks.disk_older),
    Case("disk of others", disks.disk_of_others),
    Case("disk declared lost", disks.disk_declared_lost),
    Case("node back without disks", disks.node_back_without_disks),
    Case("planned acts", alarms.planned_acts),
    Case("faults reported", alarms.faults_told),
    Case("etcd member frozen", etcd.etcd_member_frozen),
    Case("etcd restarted", etcd.etcd_restarted),
    Case("etcd majority away", states.etcd_majority_away),
    Case("etcd slow", etcd.etcd_slow),
    Case("etcd disk lost", etcd.etcd_disk_lost),
    Case("etcd restored", snapshots.etcd_restored),
    Case("etcd started over", snapshots.etcd_begun_anew),
    Case("node gone for good", nodes.node_lost_for_good),
    Case("scaled out and in", changes.scaled_out_and_in),
    Case("helm test", chart.chart_tested),
    Case("spark archive", spark.archived, needs_spark=True),
    Case("spark submitted", spark.submitted, needs_spark=True),
    Case("helm upgrade and rollback", chart.upgraded_and_back),
    Case("upgraded from the version before", upgrading.upgraded, needs_previous=True),
    Case("helm uninstall", chart.uninstalled),
    Case("namespaced install", chart.namespaced),
)


def chosen(only: Sequence[str], *, quick: bool) -> list[Case]:
    """Return the cases of a run, without the installation.

    Raises:
        ValueError: `only` names no case.
    """
    unknown = [part for part in only if not any(part in case.name for case in (INSTALL, *CASES))]
    if unknown:
        raise ValueError(f"no case is called {', '.join(unknown)}; there are: {', '.join(case.name for case in CASES)}")
    if only:
        return [case for case in CASES if any(part in case.name for part in only)]
    return [case for case in CASES if case.quick or not quick]
