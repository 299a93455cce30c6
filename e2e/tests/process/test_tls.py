"""Whole clusters with TLS on every port: they keep their promises, also if certificates are replaced under traffic."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import structlog
from seriatim import Client, Tls, _client
from seriatim._transport import append
from seriatim_api.errors import PreconditionError, TlsHandshakeError, UnavailableError
from seriatim_api.network.tls import TlsFiles
from seriatim_local import LocalCluster
from seriatim_local import tls as local_tls
from seriatim_local.layout.programs import find_etcd

from .traffic import tls_of, traffic

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

RELOAD_DEADLINE_S = 20.0

LINKS_DEADLINE_S: Final = 30.0

CROSSED_S: Final = 2.0
"""Two brokers may dial each other at the same time, and drop one connection when both are there. After this time no
older dial is under way: a dial takes a second at most, as long as its peer answers."""

PATIENCE_MS: Final = 60_000
"""Longer than any pause of a process or of a disk on a busy machine. A test that looks for broken connections waits for
silent brokers this long. Otherwise a master that got no processor for 0.4 s looks to the test like a broken connection:

1. Its client has waited 250 ms for an answer, and asks another broker.
2. The other broker does not hear the master for 150 ms, and switches. All connections stand.
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_client, "TOPIC_DEADLINE_S", 1.0)


@pytest_asyncio.fixture(loop_scope="session")
async def secure(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with started(tmp_path / "cluster") as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalCluster]:
    """The same, but only a connection that ends moves anything. Silence does not; see `PATIENCE_MS`."""
    monkeypatch.setattr(append, "SUSPICIOUS_S", PATIENCE_MS / 1000)
    monkeypatch.setattr(append, "SILENCE_S", PATIENCE_MS / 1000)
    options = ("--set", f"silence_ms={PATIENCE_MS}", "--set", f"disk_hang_ms={PATIENCE_MS}")
    async with started(tmp_path / "cluster", *options) as cluster:
        yield cluster


@asynccontextmanager
async def started(directory: Path, *options: str) -> AsyncIterator[LocalCluster]:
    """Start two groups of two with TLS, without the proxy."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    async with LocalCluster(directory, groups=2, proxy=False, name="tls", tls=True, broker_options=options) as cluster:
        yield cluster
    structlog.reset_defaults()


async def is_accepted(address: str, tls: Tls | None) -> bool:
    """Whether the broker at `address` answers a client with these certificates. Other errors are raised."""
    async with Client.connect(address, tls=tls) as client:
        try:
            await client.producer("there is no such topic".replace(" ", "-"))
        except UnavailableError:
            raise
        except Exception as exc:
            assert "there-is-no-such-topic" in str(exc)  # noqa: PT017 - an answer, of whatever kind
            return True
    raise AssertionError("there is such a topic")


async def until(holds: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Ask until the answer is yes. A broker that does not answer in time says neither yes nor no."""
    async with asyncio.timeout(RELOAD_DEADLINE_S):
        while True:
            try:
                if await holds():
                    return
            except TlsHandshakeError:
                raise  # it does not accept the certificate
            except UnavailableError:
                pass
            await asyncio.sleep(0.1)  # the states are those of other processes


async def until_all(cluster: LocalCluster, tls: Tls, *, accepted: bool) -> None:
    """Wait until every broker accepts a client, or none does. A broker reads its files when a client connects."""

    async def holds() -> bool:
        for address in cluster.bootstrap:
            try:
                answer = await is_accepted(address, tls)
            except TlsHandshakeError:
                answer = False
            if answer is not accepted:
                return False
        return True

    await until(holds)


def events_of(cluster: LocalCluster, *names: str) -> list[dict[str, Any]]:
    """The lines of all brokers' logs that report one of these events. Each names its broker."""
    wanted = [f'"event": "{name}"' for name in names]
    events: list[dict[str, Any]] = []
    for broker in cluster.broker_names:
        for line in cluster.log_file(broker).read_text().splitlines(keepends=True):
            if line.endswith("\n") and any(name in line for name in wanted):  # the last one may not be complete yet
                events.append({**json.loads(line), "broker": broker})
    return events


def links_of(cluster: LocalCluster) -> dict[tuple[str, str], tuple[int, datetime]]:
    """The links of all brokers by broker and peer: the number of the connection, and when the broker took it.

    A broker gives each connection that it takes a higher number. So two equal answers prove that no link was recreated.
    """
    links: dict[tuple[str, str], tuple[int, datetime]] = {}
    for event in events_of(cluster, "link_up", "link_down"):
        ends = event["broker"], event["peer"]
        if event["event"] == "link_up":
            links[ends] = event["session"], datetime.fromisoformat(event["timestamp"])
        elif ends in links and links[ends][0] == event["session"]:
            del links[ends]
    return links


async def all_links(cluster: LocalCluster) -> dict[tuple[str, str], tuple[int, datetime]]:
    """Wait until each broker has a link to each other one, and no two dials cross any more. Return the links.

    Brokers are ready before they have all links, and a client may use them before."""
    count = len(cluster.broker_names)
    async with asyncio.timeout(LINKS_DEADLINE_S):
        while True:
            links = links_of(cluster)
            ages_s = [(datetime.now(UTC) - since).total_seconds() for _, since in links.values()]
            if len(links) == count * (count - 1) and min(ages_s) > CROSSED_S:
                return links
            await asyncio.sleep(0.1)  # the logs are those of other processes


async def test_a_killed_master_is_passed_over_as_without_tls(secure: LocalCluster, tmp_path: Path) -> None:
    async with traffic(secure, "killed", tmp_path) as running:
        segment = (await running.look()).chains[0].open_segment
        began = time.monotonic()
        await secure.kill(segment.members[0])
        await running.moved_past(segment.no)
        print(f"moved after {time.monotonic() - began:.2f} s")
        await running.goes_on()
        await secure.start_again(segment.members[0])
        await secure.wait_ready()
        await running.goes_on()


async def test_only_who_shows_a_certificate_of_the_authority_is_served(secure: LocalCluster, tmp_path: Path) -> None:
    right = tls_of(secure)
    assert right is not None
    stranger = local_tls.make(tmp_path / "stranger", ["127.0.0.1"]).client
    address = secure.bootstrap[0]
    assert await is_accepted(address, right)

    async def refusal(tls: Tls | None) -> str:
        with pytest.raises(UnavailableError) as raised:
            await is_accepted(address, tls)
        assert isinstance(raised.value, TlsHandshakeError) is (tls is not None)
        return raised.value.message

    assert "asks for a certificate, and none was shown" in await refusal(Tls(right.ca))
    assert "does not accept the certificate that was shown" in await refusal(Tls(right.ca, stranger.cert, stranger.key))
    assert "not issued by the CA that was given" in await refusal(Tls(stranger.ca, stranger.cert, stranger.key))
    assert "for other names" in await refusal(Tls(right.ca, right.cert, right.key, server_name="elsewhere.example"))
    assert "does the broker ask for TLS" in await refusal(None)


async def test_the_authority_is_replaced_under_traffic_and_nothing_that_stands_breaks(
    patient: LocalCluster, tmp_path: Path
) -> None:
    assert patient.tls is not None
    used = patient.tls.ca.parent
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(used, old)
    hosts = [broker.listen.host for broker in patient.plan.brokers]
    local_tls.make(new, ["127.0.0.1", *hosts])

    def client_of(directory: Path, ca: Path) -> Tls:
        return Tls(ca, directory / "client.crt", directory / "client.key")

    def put(name: str, content: bytes) -> None:
        (used / f"{name}.new").write_bytes(content)
        (used / f"{name}.new").rename(used / name)

    async def half_is_told() -> bool:
        """Whether every broker reports a certificate without its key. The brokers still use the old pair."""
        answers = [await is_accepted(address, client_of(old, old / "ca.crt")) for address in patient.bootstrap]
        return all(answers) and len(events_of(patient, "certificates_not_reloaded")) >= len(patient.broker_names)

    histories = tmp_path / "histories"
    histories.mkdir()
    async with traffic(patient, "rotated", histories, reply_timeout_ms=PATIENCE_MS) as running:
        links = await all_links(patient)
        segments = [chain.open_segment.no for chain in (await running.look()).chains]
        put("ca.crt", (old / "ca.crt").read_bytes() + (new / "ca.crt").read_bytes())
        await until_all(patient, client_of(new, old / "ca.crt"), accepted=True)
        await running.goes_on()
        put("broker.crt", (new / "broker.crt").read_bytes())
        await until(half_is_told)
        put("broker.key", (new / "broker.key").read_bytes())
        for name in ("client.crt", "client.key"):
            put(name, (new / name).read_bytes())
        await until_all(patient, client_of(new, new / "ca.crt"), accepted=True)
        await running.goes_on()
        put("ca.crt", (new / "ca.crt").read_bytes())
        await until_all(patient, client_of(old, new / "ca.crt"), accepted=False)
        await running.goes_on()
        assert links_of(patient) == links, "no link was recreated"
        now = [chain.open_segment.no for chain in (await running.look()).chains]
        assert now == segments, f"nothing was switched: {events_of(patient, 'switched')}"
        # Connections that break now are made again with the new certificates: links, streams, and those to the
        # coordinator.
        victim = await running.master()
        await patient.kill(victim)
        await running.goes_on()
        await patient.start_again(victim)
        await patient.wait_ready()
        await running.goes_on()
        assert links_of(patient) != links


async def test_a_client_certificate_that_has_expired_is_refused_and_one_in_time_is_not(
    secure: LocalCluster, tmp_path: Path
) -> None:
    """The test has an authority of its own, because the cluster's authority forgets its key."""
    trustme = pytest.importorskip("trustme")
    assert secure.tls is not None
    authority = trustme.CA()
    valid = authority.issue_cert("client@example.org")
    ended = {"not_before": datetime(2001, 1, 1, tzinfo=UTC), "not_after": datetime(2002, 1, 1, tzinfo=UTC)}
    expired = authority.issue_cert("client@example.org", **ended)
    old_ca = tmp_path / "old.crt"
    shutil.copy(secure.tls.ca, old_ca)
    secure.tls.ca.write_bytes(old_ca.read_bytes() + authority.cert_pem.bytes())
    found: dict[str, Tls] = {}
    for name, issued in (("valid", valid), ("expired", expired)):
        files = TlsFiles(old_ca, tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(str(files.cert))
        issued.private_key_pem.write_to_path(str(files.key))
        found[name] = Tls(old_ca, files.cert, files.key)
    await until_all(secure, found["valid"], accepted=True)
    with pytest.raises(TlsHandshakeError, match="does not accept the certificate that was shown"):
        await is_accepted(secure.bootstrap[0], found["expired"])


@pytest.mark.etcd
async def test_etcd_is_spoken_to_with_tls(tmp_path: Path) -> None:
    try:
        find_etcd()
    except PreconditionError as exc:
        if os.environ.get("SERIATIM_REQUIRE_ETCD") == "1":
            raise
        pytest.skip(str(exc))
    async with (
        LocalCluster(
            tmp_path / "cluster", groups=2, proxy=False, name="etcd-tls", tls=True, coordinator="etcd"
        ) as cluster,
        traffic(cluster, "kept", tmp_path) as running,
    ):
        victim = await running.master()
        await cluster.kill(victim)
        await running.goes_on()
        await cluster.start_again(victim)
        await cluster.restart("coordinator")
        await cluster.wait_ready()
        await running.goes_on()
