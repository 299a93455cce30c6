"""Examines a cluster: runs every check on one look at the API and on what the brokers answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from seriatim_api.errors import SeriatimError
from seriatim_api.v1 import broker_pb2, operations_pb2

from ..cluster.connection import Connection, ConnectionFailedError
from ..cluster.kube import Kube
from . import certificate_checks, checks, condition_checks, member_checks
from .errors import PluginError
from .findings import Finding, bad, unknown, well
from .health import examine_pages
from .live import reach_brokers
from .look import Look

CHECKS: Final[tuple[Callable[[Look], list[Finding]], ...]] = (
    checks.check_operator,
    checks.check_etcd,
    checks.check_class,
    checks.check_nodes,
    checks.check_cluster,
    checks.check_drains,
    checks.check_budgets,
    checks.check_network_policy,
    checks.check_topics,
    checks.check_consumer_groups,
    condition_checks.check_conditions,
    certificate_checks.check_certificates,
    member_checks.check_pods,
    member_checks.check_disks,
    member_checks.check_images,
)
"""The checks that need only a look at the API."""


async def examine(connection: Connection, kube: Kube, look: Look, *, with_brokers: bool) -> list[Finding]:
    """Examine a cluster and return all findings. What cannot be reached becomes a finding, not an error.

    Args:
        connection: To the Kubernetes API, and for port-forwards.
        kube: Client of the Kubernetes API.
        look: The cluster's objects.
        with_brokers: Also ask the brokers.
    """
    findings = [*await _kubernetes(connection), *(finding for check in CHECKS for finding in check(look))]
    if with_brokers:
        findings += await examine_pages(connection, kube, look)
        findings += await _ask(connection, kube, look)
    return findings


async def _kubernetes(connection: Connection) -> list[Finding]:
    try:
        version = await asyncio.to_thread(connection.server_version)
    except ConnectionFailedError as exc:
        return [bad("Kubernetes", str(exc), "first see why the API server does not answer")]
    return checks.check_kubernetes(version)


async def _ask(connection: Connection, kube: Kube, look: Look) -> list[Finding]:
    """Findings that only brokers can give. An answer also proves that the brokers reach etcd."""
    try:
        async with reach_brokers(connection, kube, look.cluster) as brokers:
            groups: Sequence[operations_pb2.BrokerGroupDescription] = await brokers.list_broker_groups(
                with_counts=False
            )
            described: broker_pb2.DescribeClusterResponse = await brokers.describe_cluster()
    except PluginError as exc:
        return [unknown("brokers", str(exc), "see the findings about pods and certificates above")]
    except SeriatimError as exc:
        remedy = f"see the log of a broker, and whether it reaches {', '.join(look.cluster.spec.etcd.endpoints)}"
        return [bad("etcd", f"the brokers do not answer, mostly because they do not reach etcd: {exc}", remedy)]
    return [
        well("etcd", f"the brokers read it; {described.controller or 'no broker'} is the controller"),
        *member_checks.check_controller(described),
        *member_checks.check_members(look, groups),
        *member_checks.check_protocol(groups),
    ]
