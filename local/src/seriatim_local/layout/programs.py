"""The programs of a local cluster, as argument vectors: our own broker and coordinator, or a real etcd.

Only this module knows their command lines. Tests replace it with small programs of their own.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from seriatim_api.errors import ForeignDiskError, PreconditionError
from seriatim_api.ids import RunId
from seriatim_api.network.tls import TlsFiles
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.identity_file import read_identity_file

from seriatim_local.layout.plan import Address, BrokerPlan, ClusterPlan

CoordinatorKind = Literal["embedded", "etcd"]


class Programs(Protocol):
    """The command lines of all processes."""

    def broker(self, plan: ClusterPlan, broker: BrokerPlan, data: Path) -> Sequence[str]:
        """The argument vector of a broker with its data directory."""
        ...

    def coordinator(self, plan: ClusterPlan, data: Path) -> Sequence[str]:
        """The argument vector of the coordinator with its data directory."""
        ...

    def last_run(self, data: Path, broker: str) -> RunId | None:
        """The member run that the broker's data directory names; None before the first start.

        Raises:
            StorageError: The directory cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class SeriatimPrograms:
    """The real broker, and the embedded coordinator or etcd.

    Attributes:
        coordinator_kind: The embedded coordinator, or etcd.
        broker_options: More words for each broker's command line.
        tls: The certificate of all processes; None: plain text.
    """

    coordinator_kind: CoordinatorKind = "embedded"
    broker_options: tuple[str, ...] = ()
    tls: TlsFiles | None = None

    def broker(self, plan: ClusterPlan, broker: BrokerPlan, data: Path) -> Sequence[str]:
        """`seriatim broker`, with this broker's addresses of the other brokers."""
        peers = _by_name(broker.peers)
        options = {
            "--cluster": plan.name,
            "--group": broker.group,
            "--slot": str(broker.slot),
            "--data": str(data),
            "--listen": str(broker.listen),
            "--advertise": str(broker.advertised),
            "--coordinator": str(broker.coordinator),
            "--admin-listen": str(broker.admin),
        }
        if peers:
            options["--peers"] = peers
        words = [*_OURS, "broker", *(word for option in options.items() for word in option)]
        more = {
            "link_listen": str(broker.link_listen),
            "link_peers": _by_name(broker.link_peers),
            "stream_listen": str(broker.stream_listen),
            "stream_advertise_port": str(broker.streams.port),
        }
        words += [word for name, value in more.items() if value for word in ("--set", f"{name}={value}")]
        if self.tls is not None:
            for name, file in (("ca", self.tls.ca), ("cert", self.tls.cert), ("key", self.tls.key)):
                words += ["--set", f"tls_{name}={file}", "--set", f"coordinator_tls_{name}={file}"]
        return [*words, *self.broker_options]

    def coordinator(self, plan: ClusterPlan, data: Path) -> Sequence[str]:
        """`seriatim coordinator`, or etcd with one member.

        Raises:
            PreconditionError: etcd is wanted, but is not installed.
        """
        if self.coordinator_kind == "etcd":
            return _etcd(plan, data, self.tls)
        words = [*_OURS, "coordinator", "--data", str(data), "--listen", str(plan.coordinator)]
        if self.tls is not None:
            words += ["--tls-ca", str(self.tls.ca), "--tls-cert", str(self.tls.cert), "--tls-key", str(self.tls.key)]
        return words

    def last_run(self, data: Path, broker: str) -> RunId | None:
        """The member run in the directory's identity file.

        Raises:
            ForeignDiskError: The directory belongs to another broker.
            StorageError: The identity file cannot be read.
        """
        identity_file = read_identity_file(data, crc32c)
        if identity_file is None:
            return None
        if identity_file.broker != broker:
            raise ForeignDiskError(
                f"{data} belongs to {identity_file.broker}, not to {broker}", found=identity_file.broker
            )
        return RunId(identity_file.member, identity_file.run)


def _by_name(addresses: Sequence[tuple[str, Address]]) -> str:
    return ",".join(f"{name}={address}" for name, address in addresses)


_OURS = (sys.executable, "-m", "seriatim_broker")


def find_etcd() -> str:
    """The etcd binary: `.tools/bin/etcd` of this directory or of one above it, otherwise the one on the path.

    Raises:
        PreconditionError: etcd is in neither place.
    """
    here = Path.cwd()
    for directory in (here, *here.parents):
        candidate = directory / ".tools" / "bin" / "etcd"
        if candidate.is_file():
            return str(candidate)
    found = shutil.which("etcd")
    if found is None:
        raise PreconditionError("there is no etcd in .tools/bin or on the path: 'make tools' builds one")
    return found


def _etcd(plan: ClusterPlan, data: Path, tls: TlsFiles | None) -> Sequence[str]:
    scheme = "http" if tls is None else "https"
    clients, peers = f"{scheme}://{plan.coordinator}", f"{scheme}://{plan.coordinator_peers}"
    options = {
        "--name": plan.name,
        "--data-dir": str(data),
        "--listen-client-urls": clients,
        "--advertise-client-urls": clients,
        "--listen-peer-urls": peers,
        "--initial-advertise-peer-urls": peers,
        "--initial-cluster": f"{plan.name}={peers}",
        "--log-level": "warn",
    }
    words = [find_etcd(), *(word for option in options.items() for word in option)]
    if tls is not None:
        for peer in ("", "peer-"):
            words += [
                f"--{peer}trusted-ca-file={tls.ca}",
                f"--{peer}cert-file={tls.cert}",
                f"--{peer}key-file={tls.key}",
            ]
            words.append(f"--{peer}client-cert-auth")
    return words
