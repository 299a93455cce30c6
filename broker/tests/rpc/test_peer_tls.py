"""Links with TLS: which broker may dial which, and that a refused certificate does not count as a dead process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from seriatim_api.errors import PreconditionError
from seriatim_api.ids import MemberId
from seriatim_api.network import tls
from seriatim_api.network.tls import TlsFiles, TlsSource
from seriatim_api.network.tls_contexts import TlsContexts
from seriatim_broker.interfaces.link import Connection, PeerIdentity, PeerRefusedError, PeerSilentError
from seriatim_broker.rpc.links.link import LinkDialer, LinkListener
from seriatim_broker.rpc.links.peer_names import PeerNames, covers
from seriatim_broker.runtime.driver.links import DIAL_DEADLINE_S
from structlog.testing import capture_logs

from tools.ports import free_port

from .certificates import write

DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "CHECK_INTERVAL_S", 0.0)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def identity(name: str) -> PeerIdentity:
    return PeerIdentity("c1", MemberId(name, f"{name}-disk"), 1)


def dialer_of(files: TlsFiles) -> LinkDialer:
    """Broker a's."""
    return LinkDialer(identity("a"), TlsContexts(TlsSource(files)))


async def carry(connection: Connection) -> str:
    """As `Links` would, without listening to anything."""
    return await connection.run(lambda _message: None)


@asynccontextmanager
async def acceptor(
    files: TlsFiles, addresses: dict[str, str] | None = None, *, asks: bool = True, loaded: asyncio.Event | None = None
) -> AsyncIterator[str]:
    """Broker b with its certificates; it knows the addresses of others, and has no coordinator to ask who they are."""
    known = {"a": "127.0.0.1:7100"} if addresses is None else addresses
    if loaded is None:
        loaded = asyncio.Event()
        loaded.set()
    names = PeerNames(lambda broker: [known[broker]] if broker in known else [], loaded) if asks else None
    contexts = TlsContexts(TlsSource(files), "required" if asks else "optional")
    listener = LinkListener(identity("b"), carry, names, contexts)
    try:
        yield await listener.start("127.0.0.1:0")
    finally:
        await listener.close()


async def reaches(files: TlsFiles, address: str) -> None:
    """Broker a dials, confirms, and hangs up."""
    connection = await dialer_of(files).dial(address, DEADLINE_S)
    assert connection.peer == identity("b")
    await connection.confirm()
    await connection.abandon("enough")


async def test_brokers_of_one_authority_link(tmp_path: Path, authority: trustme.CA) -> None:
    async with acceptor(write(tmp_path / "b", authority, "127.0.0.1")) as address:
        await reaches(write(tmp_path / "a", authority, "127.0.0.1"), address)


@pytest.mark.parametrize(
    ("ours", "cause"),
    [
        ("another authority", "not issued by the CA that was given"),
        ("expired", "does not accept the certificate that was shown"),
        ("none", "asks for a certificate, and none was shown"),
    ],
)
async def test_a_certificate_that_is_not_accepted_says_nothing_of_the_process(
    tmp_path: Path, authority: trustme.CA, ours: str, cause: str
) -> None:
    async with acceptor(write(tmp_path / "b", authority, "127.0.0.1")) as address:
        mine = trustme.CA() if ours == "another authority" else authority
        files = write(tmp_path / "a", mine, "127.0.0.1", expired=ours == "expired")
        files = TlsFiles(files.ca) if ours == "none" else files
        dialer = dialer_of(files)
        with capture_logs() as logs:
            for _ in range(3):
                with pytest.raises(PeerSilentError, match=cause):
                    await dialer.dial(address, DEADLINE_S)
        told = [line for line in logs if line["event"] == "peer_tls_failed"]
        assert len(told) == 1, "each cause is reported once"
        assert cause in told[0]["reason"]


async def test_a_server_whose_certificate_has_expired_is_not_reached(tmp_path: Path, authority: trustme.CA) -> None:
    async with acceptor(write(tmp_path / "b", authority, "127.0.0.1", expired=True)) as address:
        with pytest.raises(PeerSilentError, match="certificate has expired"):
            await reaches(write(tmp_path / "a", authority, "127.0.0.1"), address)


async def test_the_name_that_is_dialed_must_stand_in_the_certificate(tmp_path: Path, authority: trustme.CA) -> None:
    async with acceptor(write(tmp_path / "b", authority, "g0-1.brokers.example")) as address:
        with pytest.raises(PeerSilentError, match="for other names"):
            await reaches(write(tmp_path / "a", authority, "127.0.0.1"), address)


async def test_nobody_there_is_still_nobody_there(tmp_path: Path, authority: trustme.CA) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(PeerRefusedError):
        await reaches(write(tmp_path / "a", authority, "127.0.0.1"), address)


async def test_a_client_certificate_does_not_make_a_broker(tmp_path: Path, authority: trustme.CA) -> None:
    async with acceptor(write(tmp_path / "b", authority, "127.0.0.1")) as address:
        with capture_logs() as logs, pytest.raises(PeerSilentError, match="is for no host, and a is reached at 127"):
            await reaches(write(tmp_path / "client", authority, "someone@example.org"), address)
        assert [line["event"] for line in logs if line["log_level"] == "warning"][:1] == ["peer_refused"]


async def test_where_certificates_are_optional_nobody_is_asked(tmp_path: Path, authority: trustme.CA) -> None:
    files = write(tmp_path / "b", authority, "127.0.0.1")
    async with acceptor(files, asks=False) as address:
        await reaches(TlsFiles(files.ca), address)
        with pytest.raises(PeerSilentError, match="not issued by the CA"):
            await reaches(TlsFiles(write(tmp_path / "a", trustme.CA(), "127.0.0.1").ca), address)


async def test_a_broker_that_is_not_registered_is_refused(tmp_path: Path, authority: trustme.CA) -> None:
    async with acceptor(write(tmp_path / "b", authority, "127.0.0.1"), addresses={}) as address:
        with pytest.raises(PeerSilentError, match="a has not registered where it is reached"):
            await reaches(write(tmp_path / "a", authority, "127.0.0.1"), address)


async def test_the_certificate_of_an_intermediate_authority_is_enough(tmp_path: Path, authority: trustme.CA) -> None:
    """Some issuers write only that one into `ca.crt`."""
    intermediate = authority.create_child_ca()
    async with acceptor(write(tmp_path / "b", intermediate, "127.0.0.1")) as address:
        await reaches(write(tmp_path / "a", intermediate, "127.0.0.1"), address)


async def test_both_sides_follow_a_change_of_the_authority(tmp_path: Path, authority: trustme.CA) -> None:
    server = write(tmp_path / "b", authority, "127.0.0.1")
    files = write(tmp_path / "a", authority, "127.0.0.1")
    dialer = dialer_of(files)
    async with acceptor(server) as address:
        standing = await dialer.dial(address, DEADLINE_S)
        await standing.confirm()
        running = asyncio.create_task(carry(standing))
        new = trustme.CA()
        write(tmp_path / "b", new, "127.0.0.1")
        with pytest.raises(PeerSilentError, match="not issued by the CA"):
            await dialer.dial(address, DEADLINE_S)
        write(tmp_path / "a", new, "127.0.0.1")
        again = await dialer.dial(address, DEADLINE_S)
        await again.abandon("enough")
        assert not running.done(), "what is connected stays connected"
        standing.close("enough")
        assert await running == "enough"


@pytest.mark.parametrize(
    ("name", "host", "is_covered"),
    [
        ("g0-1.brokers.shop.svc", "G0-1.brokers.shop.svc.", True),
        ("*.brokers.shop.svc", "g0-1.brokers.shop.svc", True),
        ("*.brokers.shop.svc", "brokers.shop.svc", False),
        ("*.brokers.shop.svc", "x.g0-1.brokers.shop.svc", False),
        ("*.brokers.shop.svc", ".brokers.shop.svc", False),
        ("brokers.shop.svc", "g0-1.brokers.shop.svc", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("*", "127.0.0.1", False),
        ("*.0.0.1", "127.0.0.1", False),
        ("localhost", "127.0.0.1", False),
    ],
)
def test_names_of_certificates(name: str, host: str, is_covered: bool) -> None:
    assert covers(name, host) is is_covered


async def test_a_broker_that_has_just_started_reads_who_is_registered_before_it_refuses(
    tmp_path: Path, authority: trustme.CA
) -> None:
    addresses: dict[str, str] = {}
    loaded = asyncio.Event()

    def load() -> None:
        addresses["a"] = "127.0.0.1:7100"
        loaded.set()

    async with acceptor(write(tmp_path / "b", authority, "127.0.0.1"), addresses, loaded=loaded) as address:
        asyncio.get_running_loop().call_later(0.05, load)
        await reaches(write(tmp_path / "a", authority, "127.0.0.1"), address)


async def test_what_cannot_be_read_is_not_waited_for_longer_than_the_dialer_waits() -> None:
    with pytest.raises(PreconditionError, match="has not registered"):
        await asyncio.wait_for(PeerNames(lambda _broker: [], asyncio.Event()).check_names("a", []), DIAL_DEADLINE_S)
