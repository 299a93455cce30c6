"""A client that is neither in the cluster's network nor knows its names reaches the brokers over node ports, and over
load balancers.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from seriatim_operator.resources.names import ANNOTATION_REPLACE_AUTHORITY, EXTERNAL_PORT

from e2e.kubernetes import outsider
from e2e.kubernetes.balancers import addresses_of, balancers
from e2e.kubernetes.place import is_true
from e2e.kubernetes.release import CLUSTER, SETTLE_S
from e2e.kubernetes.stage import Stage
from tools.kubernetes.layout import ROOT
from tools.kubernetes.running import run

NETWORK: Final = "seriatim-outside"
HOST_SIDE: Final = "seriatim-out0"
"""The name of a network interface has at most 15 characters."""
HOST_ADDRESS: Final = "198.51.100.1"
OUTSIDE_ADDRESS: Final = "198.51.100.2"
"""From TEST-NET-2 (RFC 5737), which no network should have."""

ROLL_S: Final = 600.0
AUTHORITY_S: Final = SETTLE_S + 120.0
"""The first time, another authority signs the certificate. All must know it for the settle time before."""

BALANCERS_S: Final = 60.0

SEND_S: Final = 240.0
MESSAGES: Final = 2_000


async def reached_from_outside(stage: Stage) -> None:
    """Ask for node ports, and then for a load balancer for each broker. Send and read from a network namespace of its
    own, before and after a master's loss.
    """
    began = time.monotonic()
    await _set_external(stage, {"type": "NodePort", "nodeAddressType": "InternalIP"})
    try:
        await stage.wait_until("the brokers restart", lambda: _has_begun(stage), ROLL_S)
        await stage.wait_healthy(ROLL_S)
        stage.figure("two ports on every broker", time.monotonic() - began)
        await _replace_authority(stage)
        await stage.wait_until("ExternalReady", lambda: _is_ready(stage), AUTHORITY_S)
        stage.figure("ExternalReady", time.monotonic() - began)
        files = await stage.certificates()
        with outside_network():
            master = await _visit(stage, files, "node ports", "outside-1", await _node_ports(stage))
            pod = await stage.pod_of(master)
            await stage.place.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
            await _visit(stage, files, "node ports without a master", "outside-2", await _node_ports(stage))
            await stage.wait_healthy()
            async with balancers(stage.place):
                began = time.monotonic()
                await _set_external(stage, {"type": "LoadBalancer", "nodeAddressType": None})
                await stage.wait_until("ExternalReady with load balancers", lambda: _is_ready(stage), BALANCERS_S)
                stage.figure("ExternalReady with load balancers", time.monotonic() - began)
                allowed = await _balancers(stage)
                if len(allowed) != 1 + len(await stage.pods()):
                    stage.problem(f"load balancers: {', '.join(sorted(allowed))}")
                await _visit(stage, files, "load balancers", "outside-3", allowed)
    finally:
        await _set_external(stage, None)
    await stage.wait_healthy(ROLL_S)
    left = [item["metadata"]["name"] for item in await stage.place.list("services")]
    if outer := [name for name in left if name.endswith("-external")]:
        stage.problem(f"Services are left: {', '.join(outer)}")


async def _set_external(stage: Stage, external: dict[str, str | None] | None) -> None:
    await stage.place.patch("brokerclusters", CLUSTER, {"spec": {"external": external}})


async def _replace_authority(stage: Stage) -> None:
    """The authority may name only hosts inside Kubernetes: read what to type in the condition, and type it."""
    said = await stage.place.kubectl(
        "get", "brokercluster", CLUSTER, "-o", 'jsonpath={.status.conditions[?(@.type=="ExternalReady")].message}'
    )
    if found := re.search(rf"{ANNOTATION_REPLACE_AUTHORITY}=[0-9a-f]+", said):  # otherwise it may name all hosts
        await stage.place.kubectl("annotate", "brokercluster", CLUSTER, found.group())


async def _has_begun(stage: Stage) -> bool:
    """Whether a pod has the second port."""
    return any(len(pod["spec"]["containers"][0]["ports"]) > 2 for pod in await stage.pods())


async def _is_ready(stage: Stage) -> bool:
    cluster = await stage.cluster()
    status = cluster.get("status") or {}
    return is_true(cluster, "ExternalReady") and bool(status.get("externalBootstrap"))


async def _node_ports(stage: Stage) -> set[str]:
    """All addresses that a client outside may use: each node's, with each node port."""
    nodes = await stage.place.read("/api/v1/nodes")
    assert nodes is not None, "the API has nodes"
    hosts = {a["address"] for node in nodes["items"] for a in node["status"]["addresses"] if a["type"] == "InternalIP"}
    services = await stage.place.list("services")
    ports = {port["nodePort"] for item in services for port in item["spec"]["ports"] if "nodePort" in port}
    return {f"{host}:{port}" for host in hosts for port in ports}


async def _balancers(stage: Stage) -> set[str]:
    """All addresses that a client outside may use: each load balancer's, with the external port."""
    return {f"{address}:{EXTERNAL_PORT}" for address in addresses_of(await stage.place.list("services")).values()}


async def _visit(stage: Stage, files: dict[str, str], way: str, topic: str, allowed: set[str]) -> str:
    """Run the program of `outsider` in the network outside, and judge what it saw. Return the topic's master.

    Args:
        stage: The case.
        files: The client's certificate.
        way: How the client reaches the brokers, for humans.
        topic: The name of a new topic.
        allowed: The addresses to which the client may connect.
    """
    bootstrap = (await stage.cluster())["status"]["externalBootstrap"]
    if others := sorted({*bootstrap.split(",")} - allowed):
        stage.problem(f"{way}: status.externalBootstrap has {', '.join(others)}")
    command = ["ip", "netns", "exec", NETWORK, sys.executable, "-m", outsider.__name__, bootstrap, topic]
    command += [str(MESSAGES), files["ca"], files["cert"], files["key"]]
    said = await asyncio.to_thread(run, command, cwd=ROOT, timeout_s=SEND_S)
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    for name, count in (("sent", MESSAGES), ("acknowledged", MESSAGES), ("delivered", int(answer["read"]))):
        stage.counts[name] = stage.counts.get(name, 0) + count
    if answer["read"] != MESSAGES or not answer["in_order"]:
        stage.problem(f"{way}: {answer['read']} of {MESSAGES} were read, in order: {answer['in_order']}")
    if not answer["addresses"]:
        stage.problem(f"{way}: it was not seen to which addresses the client connected")
    if others := sorted(set(answer["addresses"]) - allowed):
        stage.problem(f"{way}: the client connected to {', '.join(others)}")
    stage.note(f"{way}: {answer['read']} messages over {', '.join(answer['addresses'])}")
    stage.figure(f"{way}: longest wait for an acknowledgement", answer["longest_s"])
    return str(answer["master"])


@contextmanager
def outside_network() -> Iterator[None]:
    """A network namespace that reaches this host and what it forwards, and has no name server."""
    _remove()
    run(["ip", "netns", "add", NETWORK])
    try:
        run(["ip", "link", "add", HOST_SIDE, "type", "veth", "peer", "name", "eth0", "netns", NETWORK])
        run(["ip", "address", "add", f"{HOST_ADDRESS}/30", "dev", HOST_SIDE])
        run(["ip", "link", "set", HOST_SIDE, "up"])
        inside = ["ip", "-netns", NETWORK]
        run([*inside, "address", "add", f"{OUTSIDE_ADDRESS}/30", "dev", "eth0"])
        run([*inside, "link", "set", "eth0", "up"])
        run([*inside, "link", "set", "lo", "up"])
        run([*inside, "route", "add", "default", "via", HOST_ADDRESS])
        yield
    finally:
        _remove()


def _remove() -> None:
    """Remove the namespace, and with it both ends of the link, if an earlier run left it."""
    if NETWORK in run(["ip", "netns", "list"]).split():
        run(["ip", "netns", "delete", NETWORK])
