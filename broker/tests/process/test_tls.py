"""A broker process with TLS: its admin port, its refusals at the start, and what it leaves in its status file."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import ssl
from pathlib import Path

import pytest
from seriatim_api.network.tls import TlsFiles
from seriatim_broker.process.health import AdminPort
from seriatim_broker.process.tls import admin_context, open_source
from seriatim_local import tls as local_tls

from tools.ports import free_ports

from .cluster import Cluster

pytestmark = pytest.mark.timeout(120)


def issue(directory: Path) -> TlsFiles:
    """A CA, and a certificate of it for a broker on this machine; replaces what is there."""
    return local_tls.make(directory, ["127.0.0.1"]).server


def options(files: TlsFiles, prefix: str = "tls") -> tuple[str, ...]:
    words: list[str] = []
    for name, file in (("ca", files.ca), ("cert", files.cert), ("key", files.key)):
        words += ["--set", f"{prefix}_{name}={file}"]
    return tuple(words)


async def refusal(cluster: Cluster, name: str, *words: str) -> tuple[str, dict[str, object]]:
    """What a broker that does not start says, on stderr and in its status file."""
    status = cluster.directory / "status"
    status.unlink(missing_ok=True)
    broker = cluster.make(name, *words, "--set", f"status_file={status}", log="refused")
    await broker.start()
    async with asyncio.timeout(60):
        assert broker.running is not None
        assert await broker.running.wait() == 2
    return broker.log_text(), json.loads(status.read_text())


async def test_bad_files_are_refused_at_the_start_with_a_remedy(tmp_path: Path) -> None:
    files, other = issue(tmp_path / "a"), issue(tmp_path / "b")
    cluster = Cluster(tmp_path, 1)
    for words, text in (
        (options(TlsFiles(files.ca, files.cert, other.key)), "belong to different keys. Remedy"),
        (options(TlsFiles(tmp_path / "none", files.cert, files.key)), "none cannot be read: No such file"),
    ):
        log, status = await refusal(cluster, "g0-0", *words)
        assert text in log
        assert "PRIVATE" not in log
        assert (status["broker"], status["error"], status["number"]) == ("g0-0", "PreconditionError", 130)
        assert text in str(status["text"])


async def test_settings_that_are_none_are_told_to_who_watches_the_status_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seriatim_broker.serving import run_broker

    for name, value in (("STATUS_FILE", str(tmp_path / "status")), ("GROUP", "g3"), ("SLOT", "1")):
        monkeypatch.setenv(f"SERIATIM_{name}", value)
    with pytest.raises(SystemExit):
        run_broker(None, ("nonsense=1",), {})
    status = json.loads((tmp_path / "status").read_text())
    assert (status["broker"], status["error"], status["number"]) == ("g3-1", "BadRequestError", 100)
    assert "there is no setting 'nonsense'" in status["text"]


async def test_the_coordinator_is_not_believed_without_its_authority(tmp_path: Path) -> None:
    theirs, ours = issue(tmp_path / "theirs"), issue(tmp_path / "ours")
    cluster = Cluster(tmp_path, 1)
    words = ["--tls-ca", str(theirs.ca), "--tls-cert", str(theirs.cert), "--tls-key", str(theirs.key)]
    cluster.coordinator.arguments += words
    try:
        await cluster.coordinator.start()
        join = ("--set", "join_deadline_s=4")
        log, status = await refusal(cluster, "g0-0", *join, *options(ours, "coordinator_tls"))
        assert "the other side's certificate was not issued by the CA that was given" in log
        assert "incarnation" not in status, "it never began a run"
        log, _ = await refusal(
            cluster, "g0-0", *join, *options(TlsFiles(theirs.ca, ours.cert, ours.key), "coordinator_tls")
        )
        assert "does not accept the certificate that was shown" in log
    finally:
        await cluster.stop()


async def test_the_status_file_names_the_run_and_then_the_reason(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    status = tmp_path / "status"
    broker = cluster.brokers["g0-0"] = cluster.make("g0-0", "--set", f"status_file={status}")
    try:
        await cluster.coordinator.start()
        for run in (1, 2):
            status.write_text("x" * 5000)  # of another container: nothing of it may stay
            await broker.start()
            await cluster.brokers["g0-1"].start()
            await cluster.ready("g0-0")
            found = json.loads(status.read_text())
            assert sorted(found) == ["broker", "incarnation", "run"]
            assert (found["broker"], found["run"]) == ("g0-0", run)
            for one in cluster.brokers.values():
                await one.end(signal.SIGTERM)
            assert json.loads(status.read_text()) == found, "an orderly end says nothing more"
        shutil.rmtree(tmp_path / "g0-0")
        log, refused = await refusal(cluster, "g0-0")
        assert "[703]" in log
        assert (refused["error"], refused["number"]) == ("WipedDiskError", 703)
        assert "run" not in refused, "no run began on this disk"
    finally:
        await cluster.stop()


async def test_the_admin_port_follows_its_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim_api.network.tls.CHECK_INTERVAL_S", 0.0)
    used, new = issue(tmp_path / "used"), issue(tmp_path / "new")
    shutil.copytree(tmp_path / "used", tmp_path / "old")
    port = AdminPort(lambda: b"a_metric 1\n", lambda: "", lambda: "", admin_context(open_source(used, "test")))
    address = free_ports(1)[0]
    await port.start(f"127.0.0.1:{address}")

    async def get(authority: Path, server_name: str) -> bytes:
        context = ssl.create_default_context(cafile=str(authority))
        reader, writer = await asyncio.open_connection("127.0.0.1", address, ssl=context, server_hostname=server_name)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    try:
        for name in ("127.0.0.1", "localhost"):  # without a name in the handshake, and with one
            assert (await get(tmp_path / "old" / "ca.crt", name)).endswith(b"a_metric 1\n")
        with pytest.raises(ssl.SSLCertVerificationError):
            await get(new.ca, "localhost")
        shutil.copytree(tmp_path / "new", tmp_path / "used", dirs_exist_ok=True)
        for name in ("127.0.0.1", "localhost"):
            assert (await get(new.ca, name)).endswith(b"a_metric 1\n")
        shutil.copy(tmp_path / "old" / "broker.key", tmp_path / "used" / "broker.key")  # half of a change
        assert (await get(new.ca, "localhost")).endswith(b"a_metric 1\n")
    finally:
        await port.close()
