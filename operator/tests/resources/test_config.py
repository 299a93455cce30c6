"""The brokers' settings: what the file says, that a broker takes it, and what users may write."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from seriatim_broker.process.settings import NAMES, load
from seriatim_operator.resources.config import settings_in
from seriatim_operator.spec.settings import (
    USER_SETTINGS,
    InvalidSettingError,
    UnknownSettingError,
    parse_settings,
)

from .objects import broker, children

FULL: dict[str, Any] = {
    "etcd": {"endpoints": ["etcd-0:2379", "etcd-1:2379"], "tlsSecret": "etcd-client"},
    "settings": {"heal_after_s": "90.5", "log_level": "debug"},
}


def toml_of(**spec: Any) -> str:
    return str(children(**spec).config()["data"]["broker.toml"])


def test_file_says_where_everything_is() -> None:
    assert tomllib.loads(toml_of(**FULL)) == {
        "cluster": "shop.orders",
        "data": "/var/lib/seriatim/data",
        "listen": "0.0.0.0:7100",
        "admin_listen": "0.0.0.0:7101",
        "coordinator": ["etcd-0:2379", "etcd-1:2379"],
        "join_deadline_s": 86_400.0,
        "tls_ca": "/etc/seriatim/tls/ca.crt",
        "tls_cert": "/etc/seriatim/tls/tls.crt",
        "tls_key": "/etc/seriatim/tls/tls.key",
        "coordinator_tls_ca": "/etc/seriatim/etcd-tls/ca.crt",
        "coordinator_tls_cert": "/etc/seriatim/etcd-tls/tls.crt",
        "coordinator_tls_key": "/etc/seriatim/etcd-tls/tls.key",
        "heal_after_s": 90.5,
        "log_level": "debug",
    }


def test_without_encryption_nothing_is_said_of_it() -> None:
    assert "tls" not in toml_of(tls={"enabled": False})


def test_clusters_of_one_name_in_two_namespaces_are_two() -> None:
    names = {
        tomllib.loads(children(namespace).config()["data"]["broker.toml"])["cluster"] for namespace in ("shop", "bank")
    }
    assert names == {"shop.orders", "bank.orders"}


def test_a_broker_takes_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(toml_of(**{**FULL, "settings": {name: EXAMPLES[name] for name in USER_SETTINGS}}))
    [container] = children(**FULL).pod(broker(replaces="ab12"))["spec"]["containers"]
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    loaded = load({}, file)
    assert loaded.broker == "g0-1"
    assert loaded.replace_disk_of == "ab12"
    assert loaded.client_address == "g0-1.orders-brokers.shop.svc:7100"


EXAMPLES = dict.fromkeys(USER_SETTINGS, "0.5") | {
    "batch_size_bytes_max": "65536",
    "disk_hang_ms": "2000",
    "disk_reserve_percent": "5",
    "disk_reserve_size_bytes_min": "1073741824",
    "forwarding_size_bytes_max": "8388608",
    "group_series_max": "0",
    "topic_series_max": "0",
    "head_cache_size_bytes_max": "0",
    "heartbeat_ms": "50",
    "in_flight_size_bytes_max": "8388608",
    "log_level": "warning",
    "planned_switch_ms": "100",
    "producer_protect_s": "700",
    "producer_tables_size_bytes_max": "33554432",
    "producers_remembered": "5000",
    "retry_cache_size_bytes_max": "8388608",
    "segment_size_bytes_max": "33554432",
    "serve_lease_ms": "400",
    "silence_ms": "700",
    "tls_client_auth": "optional",
}


@pytest.mark.parametrize("name", sorted(USER_SETTINGS))
def test_every_setting_of_the_list_is_one_of_the_brokers(name: str) -> None:
    assert name in NAMES


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("heal_after", "heal_after_s"), ("loglevel", "log_level"), ("listen", "silence_ms"), ("tls_key", "silence_ms")],
)
def test_unknown_setting_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownSettingError, match="there is no setting") as caught:
        parse_settings({name: "1"})
    assert caught.value.name == name
    assert nearest in (caught.value.nearest, "silence_ms")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("heal_after_s", "soon", "must be a number"),
        ("heal_after_s", "0", "above 0"),
        ("heal_after_s", "nan", "above 0"),
        ("heal_after_s", "-1", "above 0"),
        ("heartbeat_ms", "12.5", "a whole number"),
        ("heartbeat_ms", "9", "at least 10"),
        ("batch_size_bytes_max", "1048577", "at most 1048576"),
        ("log_level", "verbose", "one of debug, info"),
        ("tls_client_auth", "none", "one of required, optional"),
        ("heartbeat_ms", "300", "below serve_lease_ms"),
    ],
)
def test_bad_value_is_refused_with_what_would_do(name: str, value: str, says: str) -> None:
    with pytest.raises(InvalidSettingError, match=says.replace("+", r"\+")) as caught:
        parse_settings({name: value})
    assert caught.value.name == name


def test_limits_are_those_of_the_broker() -> None:
    """What the operator lets through a broker takes, and the other way round, at each limit."""
    base = {"cluster": "c", "group": "g0", "slot": 0, "data": "/d", "listen": "a:1", "coordinator": ["b:2"]}
    candidates = (
        "0",
        "0.001",
        "1",
        "1.001",
        "10.001",
        "100",
        "100.5",
        "9",
        "10",
        "49",
        "50",
        "99",
        "101",
        "1023",
        "1024",
        "65536",
        "1048576",
        "1048577",
        "-1",
    )
    for name in sorted(set(USER_SETTINGS) & set(NAMES)):
        for text in candidates:
            mine = accepts(lambda name=name, text=text: parse_settings({name: text}))  # type: ignore[misc]
            theirs = accepts(lambda name=name, text=text: load({**base, name: text}, None, {}))  # type: ignore[misc]
            if name not in ("log_level",):
                assert mine == theirs, (name, text)


def test_settings_are_found_again_in_the_file() -> None:
    said = {"heal_after_s": "90.5", "log_level": "debug", "heartbeat_ms": "50"}
    made = children(settings=said)
    found = settings_in(made.config()["data"]["broker.toml"])
    assert found == said
    assert children(settings=found).template_hash() == made.template_hash()
    assert settings_in(toml_of()) == {}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("not = [toml", {}),
        ('heal_after = 1\nlog_level = "loud"\nsilence_ms = 700', {"silence_ms": "700"}),
        ("heartbeat_ms = 300\nsilence_ms = 700", {}),
    ],
)
def test_what_a_broker_would_refuse_is_not_found_in_the_file(text: str, left: dict[str, str]) -> None:
    assert settings_in(text) == left


def accepts(call: Any) -> bool:
    try:
        call()
    except Exception:
        return False
    return True
