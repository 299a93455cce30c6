"""`seriatim operator etcd-member`: runs before each member of the chart's etcd and writes its settings."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog
import yaml

from ..cluster.kinds import CONFIG_MAP
from ..cluster.kube import Kube, KubeError
from .gateway import Gateway, GatewayError
from .joining import BeginAnew, Forget, Situation, Start, TakeIn, Wait, began, joined, next_step

AGAIN_S = 2.0

DECIDED_FILE = "begins-anew"
"""A mark on the volume, beside the data: the disk was empty when its member was allowed to begin a cluster."""

JOINS_FILE = "joins"
"""A mark beside the data, with the members: the others added the member with this disk, which was empty."""

ELECTION_BEATS_MIN = 5
ELECTION_MS_MAX = 50_000
"""etcd's own limits of the election timeout. With others it ends at each start, and says so only in its log."""

_log = structlog.get_logger(__name__)


class SettingsRefusedError(Exception):
    """etcd would refuse its settings. The text says which, and what to do."""


class Register(Protocol):
    """The list of members that have begun, outside of any member's disk."""

    def begun(self) -> Mapping[str, str]:
        """For each member that has begun, the peer URLs of the cluster that it began.

        Raises:
            KubeError: The register cannot be read.
        """

    def write_down(self, name: str, began: str) -> None:
        """Note that a member begins, and with which peer URLs.

        Raises:
            KubeError: The note may not have been written.
        """


class ConfigMapRegister:
    """The register as a ConfigMap, with one key for each member."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name

    def begun(self) -> Mapping[str, str]:
        """The keys of the ConfigMap with their values."""
        found = asyncio.run(self._kube.get(CONFIG_MAP, self._namespace, self._name))
        if found is None:
            raise KubeError(404, "NotFound", f"there is no ConfigMap {self._name}: `helm upgrade` makes it")
        return dict(found.get("data") or {})

    def write_down(self, name: str, began: str) -> None:
        """Set the member's key."""
        patch = {"data": {name: began}}
        asyncio.run(self._kube.merge(CONFIG_MAP, self._namespace, self._name, patch))


@dataclass(frozen=True, slots=True)
class Place:
    """A member and its files.

    Attributes:
        name: The member's name.
        settings: File with etcd's settings as the chart has them; `initial-cluster` names all members.
        volume: The root directory of its disk.
        output: File to which the settings for its start are written.
        tls: Directory with the certificate for calls between members; None without TLS.
        client_port: Port on which members answer clients.
    """

    name: str
    settings: Path
    volume: Path
    output: Path
    tls: Path | None
    client_port: int = 2379


def prepare(place: Place, register: Register, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until a start is safe, and write the settings for it. It looks again every 2 s, with no limit.

    Args:
        place: The member and its files.
        register: Which members have begun.
        sleep: Waits for a number of seconds.

    Raises:
        SettingsRefusedError: etcd would end with these settings.
    """
    settings = yaml.safe_load(place.settings.read_text())
    _check_elections(settings)
    configured = dict(part.split("=", 1) for part in settings["initial-cluster"].split(","))
    gateway = Gateway(_others(place, configured), place.tls)
    told = ""
    while True:
        try:
            now = _look(place, configured, register, gateway)
            step = next_step(now)
            if isinstance(step, Start):
                if now.has_data:
                    _remind(register, place.name)
                    for mark in (DECIDED_FILE, JOINS_FILE):  # they are about an empty disk, and would be wrong later
                        (place.volume / mark).unlink(missing_ok=True)
                _write(place, settings, now.peer_url, step)
                return
            why = _do(step, now, place, register, gateway)
        except (KubeError, GatewayError) as exc:
            why = str(exc)
        if why and why != told:
            _log.warning("waits", member=place.name, why=why)
            told = why
        if why:
            sleep(AGAIN_S)


def _check_elections(settings: Mapping[str, Any]) -> None:
    heartbeat_ms, election_ms = settings.get("heartbeat-interval", 100), settings.get("election-timeout", 1000)
    if not (0 < ELECTION_BEATS_MIN * heartbeat_ms <= election_ms <= ELECTION_MS_MAX):
        raise SettingsRefusedError(
            f"election-timeout is {election_ms} ms and heartbeat-interval {heartbeat_ms} ms. Remedy: set etcd.settings "
            f"of the chart so that the first is at least {ELECTION_BEATS_MIN} times the second, and at most "
            f"{ELECTION_MS_MAX} ms"
        )


def _look(place: Place, configured: dict[str, str], register: Register, gateway: Gateway) -> Situation:
    """Find out what is known. With a log or the mark on its disk the member asks neither the API nor other members.

    So a member can return while everything else is down.
    """
    data = place.volume / "data" / "member" / "wal"
    has_data = data.is_dir() and any(data.iterdir())
    has_decided = (place.volume / DECIDED_FILE).exists()
    if has_data or has_decided:
        return Situation(place.name, configured, has_data, has_decided, {}, listed=None)
    begun = register.begun()
    try:
        listed = gateway.members()
    except GatewayError as exc:
        _log.info("others_silent", error=str(exc))
        listed = None
    mark = place.volume / JOINS_FILE
    joins = mark.read_text() if mark.exists() else ""
    return Situation(place.name, configured, has_data, has_decided, begun, listed, joins)


def _remind(register: Register, name: str) -> None:
    """Note a member with a log in the register again, if an administrator deleted the register. A failure is only
    logged."""
    try:
        if name not in register.begun():
            register.write_down(name, "")  # its cluster's members are not known now: "" lets no other begin
    except KubeError as exc:
        _log.warning("not_registered", member=name, error=str(exc))


def _do(
    step: BeginAnew | Forget | TakeIn | Wait,
    now: Situation,
    place: Place,
    register: Register,
    gateway: Gateway,
) -> str:
    """Take one step. Returns what the member waits for; empty if it does not wait."""
    if isinstance(step, Wait):
        return step.why
    _log.info("step", member=place.name, step=str(step))
    if isinstance(step, Forget):
        gateway.forget(step.id)
    elif isinstance(step, TakeIn):
        _put(place.volume / JOINS_FILE, joined(now, gateway.take_in(now.peer_url)))
    else:
        # First the register, then the mark on the disk. In the other order: 1. The member writes the mark and crashes.
        # 2. It starts by the mark, and then loses its disk. 3. The register does not know it, so it begins a second
        # cluster. In this order a crash between the two leaves a member that the others must add.
        register.write_down(place.name, began(now.configured))
        _put(place.volume / DECIDED_FILE, "")
    return ""


def _others(place: Place, configured: dict[str, str]) -> list[str]:
    """Client URLs of the other members."""
    return [_client_url(place, url) for name, url in configured.items() if name != place.name]


def _client_url(place: Place, peer_url: str) -> str:
    return f"{peer_url.rsplit(':', 1)[0]}:{place.client_port}"


def _write(place: Place, settings: dict[str, Any], peer_url: str, start: Start) -> None:
    settings = {
        **settings,
        "name": place.name,
        "initial-advertise-peer-urls": peer_url,
        "advertise-client-urls": _client_url(place, peer_url),
        "initial-cluster": start.initial_cluster,
        "initial-cluster-state": start.state,
    }
    _put(place.output, json.dumps(settings, indent=1))  # JSON is YAML
    _log.info("starts", member=place.name, state=start.state, initial_cluster=start.initial_cluster)


def _put(path: Path, text: str) -> None:
    """Write a file so that it is complete or absent, also after a loss of power."""
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def prepare_member(place: Place, namespace: str, register: str) -> None:
    """Prepare a member with the register in ConfigMap `register` of the namespace."""
    kube = Kube()
    try:
        prepare(place, ConfigMapRegister(kube, namespace, register))
    finally:
        kube.close()
