"""Where settings come from, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from seriatim_api.errors import BadRequestError
from seriatim_api.network.tls import TlsFiles
from seriatim_broker.process.settings import load

GIVEN: dict[str, Any] = {
    "cluster": "c",
    "group": "g0",
    "slot": 1,
    "data": "/data",
    "listen": "127.0.0.1:7001",
    "coordinator": "127.0.0.1:2379,127.0.0.2:2379",
}


def test_flags_are_enough() -> None:
    settings = load(GIVEN, None, {})
    assert settings.broker == "g0-1"
    assert settings.coordinator == ("127.0.0.1:2379", "127.0.0.2:2379")
    assert settings.client_address == "127.0.0.1:7001"
    assert settings.core_config().heartbeat_us == 100_000


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        'heal_after_s = 1\nsilence_ms = 1\nlog_level = "error"\n[peers]\ng1-0 = "h:1"\n[link_peers]\ng1-0 = "h:2"\n'
    )
    monkeypatch.setenv("SERIATIM_HEAL_AFTER_S", "2")
    monkeypatch.setenv("SERIATIM_SILENCE_MS", "700")
    settings = load({**GIVEN, "heal_after_s": 3, "log_level": None}, file)
    assert (settings.heal_after_s, settings.silence_ms, settings.log_level) == (3, 700, "error")
    assert (settings.peers, settings.link_peers) == ({"g1-0": "h:1"}, {"g1-0": "h:2"})


def test_peers_are_written_as_pairs() -> None:
    settings = load({**GIVEN, "peers": "g1-0=h:1,g1-1=h:2", "link_peers": "g1-0=h:3,g1-1=h:4"}, None, {})
    assert settings.peers == {"g1-0": "h:1", "g1-1": "h:2"}
    assert settings.link_peers == {"g1-0": "h:3", "g1-1": "h:4"}


@pytest.mark.parametrize(
    ("listen", "links"),
    [
        ("0.0.0.0:7100", "0.0.0.0:17100"),
        ("[::1]:55535", "[::1]:65535"),
        ("h:55536", "h:45536"),
        ("h:65535", "h:55535"),
        ("h:0", "h:0"),
    ],
)
def test_the_port_of_links_follows_that_of_clients(listen: str, links: str) -> None:
    assert load({**GIVEN, "listen": listen}, None, {}).links == links
    assert load({**GIVEN, "listen": listen, "link_listen": "h:7103"}, None, {}).links == "h:7103"


def test_links_are_reached_at_the_advertised_host() -> None:
    for advertise, address in (("g0-1.shop:7100", "g0-1.shop:7103"), ("[::1]:7100", "[::1]:7103")):
        assert load({**GIVEN, "advertise": advertise}, None, {}).link_address("0.0.0.0:7103") == address
    with pytest.raises(BadRequestError, match="link_listen"):
        load({**GIVEN, "link_listen": GIVEN["listen"]}, None, {})


def test_addresses_by_hand_are_given_for_calls_and_links() -> None:
    for one in ("peers", "link_peers"):
        with pytest.raises(BadRequestError, match="peers and link_peers"):
            load({**GIVEN, one: "g1-0=h:1"}, None, {})


def test_the_port_of_streams_is_the_advertised_one() -> None:
    assert load(GIVEN, None, {}).stream_port == 0
    assert load({**GIVEN, "stream_listen": "0.0.0.0:7104"}, None, {}).stream_port == 7104
    assert load({**GIVEN, "stream_listen": "0.0.0.0:0"}, None, {}).stream_port == 0, "the system chooses it"
    forwarded = {"stream_listen": "0.0.0.0:7104", "stream_advertise_port": 30104}
    assert load({**GIVEN, **forwarded}, None, {}).stream_port == 30104


def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("heal_afer_s = 5\n")
    with pytest.raises(BadRequestError, match="nearest is 'heal_after_s'"):
        load(GIVEN, file, {})
    with pytest.raises(BadRequestError, match="nearest is 'silence_ms'"):
        load(GIVEN, None, {"SERIATIM_SILENCE_MSS": "5"})
    assert load(GIVEN, None, {"SERIATIM_HISTORY": "of another program"}).broker == "g0-1"


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": "a/b"},
        {"listen": "nowhere"},
        {"coordinator": ""},
        {"peers": "g1-0"},
        {"link_peers": "g1-0"},
        {"link_listen": "nowhere"},
        {"slot": -1},
        {"heartbeat_ms": 400},
        {"batch_size_bytes_max": 1 << 30},
    ],
)
def test_values_that_are_none_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError, match=next(iter(change))):
        load({**GIVEN, **change}, None, {})


def test_all_that_is_wrong_is_told_at_once() -> None:
    given = {name: value for name, value in GIVEN.items() if name != "data"}
    with pytest.raises(BadRequestError) as caught:
        load({**given, "slot": 16, "listen": "nowhere", "heartbeat_ms": "often"}, None, {})
    problems = caught.value.message.split("; ")
    assert [problem.partition(":")[0] for problem in problems] == ["data", "slot", "listen", "heartbeat_ms"]
    assert problems[1:] == [
        "slot: a whole number, at least 0, at most 15, not 16",
        "listen: an address is written host:port, not 'nowhere'",
        "heartbeat_ms: a whole number, at least 10, not 'often'",
    ]


def test_text_from_the_environment_becomes_what_the_setting_is() -> None:
    variables = {"SLOT": "0\n", "HEAL_AFTER_S": "2.5", "REPLACE_DISK": "true", "TLS_CA": "/ca", "SILENCE_MS": "700"}
    given = {name: value for name, value in GIVEN.items() if name != "slot"}
    settings = load(given, None, {f"SERIATIM_{name}": value for name, value in variables.items()} | TLS_ENVIRONMENT)
    assert (settings.slot, settings.heal_after_s, settings.replace_disk) == (0, 2.5, True)
    assert (settings.tls_ca, settings.silence_ms) == (Path("/ca"), 700)
    assert load(GIVEN, None, {"seriatim_silence_ms": "800"}).silence_ms == 800
    with pytest.raises(BadRequestError, match="silence_ms: a whole number"):
        load(GIVEN, None, {"SERIATIM_SILENCE_MS": "700.5"})
    with pytest.raises(BadRequestError, match="replace_disk: true, false, 1 or 0, not 'yes'"):
        load({**GIVEN, "replace_disk": "yes"}, None, {})
    with pytest.raises(BadRequestError, match="a path is written as text"):
        load({**GIVEN, "status_file": 5}, None, {})


def test_settings_do_not_change() -> None:
    settings = load(GIVEN, None, {})
    with pytest.raises(AttributeError, match="immutable"):
        settings.cluster = "other"


TLS_ENVIRONMENT = {"SERIATIM_TLS_CERT": "/tls/tls.crt", "SERIATIM_TLS_KEY": "/tls/tls.key"}
TLS = {"tls_ca": "/tls/ca.crt", "tls_cert": "/tls/tls.crt", "tls_key": "/tls/tls.key"}


def test_tls_is_all_three_files_or_plain_text() -> None:
    assert load(GIVEN, None, {}).tls_files is None
    files = load({**GIVEN, **TLS}, None, {}).tls_files
    assert files == TlsFiles(Path("/tls/ca.crt"), Path("/tls/tls.crt"), Path("/tls/tls.key"))
    for missing in TLS:
        some = {name: value for name, value in TLS.items() if name != missing}
        with pytest.raises(BadRequestError, match="all three, or none"):
            load({**GIVEN, **some}, None, {})
    with pytest.raises(BadRequestError, match="tls_client_auth: one of required, optional"):
        load({**GIVEN, **TLS, "tls_client_auth": "perhaps"}, None, {})


def test_the_coordinator_may_want_no_certificate_but_shows_one() -> None:
    assert load(GIVEN, None, {}).coordinator_tls_files is None
    only = load({**GIVEN, "coordinator_tls_ca": "/e/ca"}, None, {})
    assert only.coordinator_tls_files == TlsFiles(Path("/e/ca"))
    pair = {"coordinator_tls_cert": "/e/c", "coordinator_tls_key": "/e/k"}
    both = load({**GIVEN, **pair, "coordinator_tls_ca": "/e/ca"}, None, {})
    assert both.coordinator_tls_files == TlsFiles(Path("/e/ca"), Path("/e/c"), Path("/e/k"))
    with pytest.raises(BadRequestError, match="coordinator_tls_ca is missing"):
        load({**GIVEN, **pair}, None, {})
    with pytest.raises(BadRequestError, match="come together"):
        load({**GIVEN, "coordinator_tls_ca": "/e/ca", "coordinator_tls_key": "/e/k"}, None, {})


def test_what_is_meant_for_clients_in_the_environment_is_no_slip() -> None:
    assert load(GIVEN, None, {"SERIATIM_TLS_SERVER_NAME": "orders"}).tls_files is None
