"""A real API server, with its etcd, on free ports of the loopback: what is refused here is refused everywhere.

Nothing else of Kubernetes runs: no scheduler, no kubelet, so nothing becomes of the objects.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tools.ports import free_ports

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = ("etcd", "kube-apiserver", "kubectl")
TOKEN: Final = "for-the-tests-of-this-machine"
START_S: Final = 60.0
"""Five seconds on an idle machine; a busy one gets time."""


@dataclass(frozen=True)
class Answer:
    """What the API server said: its status code, and the object or the complaint."""

    status: int
    body: dict[str, Any]

    @property
    def complaint(self) -> str:
        """Why it refused; empty if it did not."""
        return "" if self.status < 400 else str(self.body.get("message", self.body))


@dataclass(frozen=True)
class ApiServer:
    """A running API server.

    Attributes:
        url: Where it answers. Its certificate is signed by itself, so callers do not check it.
        kubeconfig: A file that says so.
        kubectl_path: The command.
    """

    url: str
    kubeconfig: Path
    kubectl_path: str

    def call(self, method: str, path: str, body: object = None, content: str = "application/json") -> Answer:
        """One request; an object is sent as JSON."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=_context()) as answer:
                return Answer(answer.status, json.load(answer))
        except HTTPError as exc:
            with exc:
                return Answer(exc.code, json.load(exc))

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """What kubectl prints.

        Raises:
            AssertionError: It failed; the message has its complaint.
        """
        done = self.try_kubectl(*arguments, text=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def try_kubectl(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """kubectl, whether it fails or not."""
        command = [self.kubectl_path, f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def find_program(name: str) -> str | None:
    """Where the end-to-end tests build it, in `.tools/bin`, or on the path."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for directory in (cache / "seriatim" / "e2e" / "bin", ROOT / ".tools" / "bin"):
        if os.access(directory / name, os.X_OK):
            return str(directory / name)
    return shutil.which(name)


@contextmanager
def running_api_server(directory: Path, programs: dict[str, str]) -> Iterator[ApiServer]:
    """An API server that knows nothing of us; it ends with the block."""
    etcd_port, peer_port, port = free_ports(3)
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(_kubeconfig(f"https://127.0.0.1:{port}")))
    with ExitStack() as stack:
        etcd_command = [programs["etcd"], *_etcd_flags(directory, etcd_port, peer_port)]
        _start(stack, etcd_command, directory / "etcd.log", f"http://127.0.0.1:{etcd_port}/health")
        server_command = [programs["kube-apiserver"], *_server_flags(directory, etcd_port, port)]
        _start(stack, server_command, directory / "kube-apiserver.log", f"https://127.0.0.1:{port}/readyz")
        yield ApiServer(f"https://127.0.0.1:{port}", kubeconfig, programs["kubectl"])


@cache
def _context() -> ssl.SSLContext:
    return ssl._create_unverified_context()


def _etcd_flags(directory: Path, port: int, peer_port: int) -> list[str]:
    return [
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{port}",
        f"--advertise-client-urls=http://127.0.0.1:{port}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
        f"--initial-cluster=default=http://127.0.0.1:{peer_port}",
        "--unsafe-no-fsync",  # nothing here outlives the tests
    ]


def _server_flags(directory: Path, etcd_port: int, port: int) -> list[str]:
    key = directory / "service-accounts.key"
    key.write_bytes(
        rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    tokens = directory / "tokens.csv"
    tokens.write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",  # would refuse to advertise a loopback address
        f"--cert-dir={directory / 'certificates'}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.99.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--disable-admission-plugins=ServiceAccount",  # no controller makes the default accounts here
    ]


def _kubeconfig(url: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
        "current-context": "tests",
    }


def _start(stack: ExitStack, command: Sequence[str], log: Path, url: str) -> None:
    """Start a process that ends with the stack, and wait until it answers."""
    process = stack.enter_context(_process(command, log))
    _wait(lambda: _answers(url), process, log)


@contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block, within seconds, even if it waits for something."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(is_there: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not is_there():
        why = log.read_text(errors="replace")[-3000:]
        assert process.poll() is None, why
        assert time.monotonic() < deadline, why
        time.sleep(0.1)


def _answers(url: str) -> bool:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urllib.request.urlopen(request, timeout=2, context=_context()) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
