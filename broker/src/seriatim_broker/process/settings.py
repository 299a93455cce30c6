"""A broker's settings, from a TOML file, the environment (`SERIATIM_...`) and the command line.

The environment overrides the file, and the command line overrides both. The result is one frozen object, which is
checked once, at start. If a name is unknown, the broker does not start, and the error names the nearest known setting.
Without this check a misspelt setting would do nothing, and the mistake would show only when the setting is needed. If
several values are wrong, one error names all of them.

Imports make each start of a broker slower. So msgspec checks types and limits here (ADR 0018).
"""

from __future__ import annotations

import difflib
import os
import reprlib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert, field
from msgspec.structs import fields
from seriatim_api.batch import DELIVERY_TIMEOUT_MS_MAX
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import NAME_RULE, is_legal_name
from seriatim_api.network.tls import TlsFiles

from ..core.values.config import BrokerConfig
from ..core.values.segment import PRODUCERS_DEFAULT, PRODUCERS_MAX

ENVIRONMENT_PREFIX: Final = "SERIATIM_"
_MIB: Final = 1 << 20
_DELIVERY_S_MAX: Final = DELIVERY_TIMEOUT_MS_MAX // 1000

PORT_MAX: Final = 65535

LINK_PORT_DISTANCE: Final = 10_000
"""From a broker's port for clients to the one for links, if no other is set. A Redis cluster has the same distance."""

_Positive = Annotated[float, Meta(gt=0)]
_NotNegative = Annotated[float, Meta(ge=0)]


class ProducerSettings(Struct, frozen=True, kw_only=True):
    """What a broker remembers of producers.

    Attributes:
        producers_remembered: Number of producers that a partition remembers, to find batches that are sent again. The
            record of each segment that this broker opens has the number.
        producer_protect_s: A new producer pushes out only one that was silent for this long. If there is none, a
            partition remembers a quarter more, and refuses others. Clients try to deliver a batch for at most 600 s.
        producer_tables_size_bytes_max: Maximum memory for what the open segments of this broker remember of producers.
            Above it, new producers are refused, and none is forgotten.
    """

    producers_remembered: Annotated[int, Meta(ge=2_000, le=PRODUCERS_MAX)] = PRODUCERS_DEFAULT
    producer_protect_s: Annotated[int, Meta(ge=_DELIVERY_S_MAX, le=86_400)] = _DELIVERY_S_MAX
    producer_tables_size_bytes_max: Annotated[int, Meta(ge=16 * _MIB)] = 512 * _MIB


class BrokerSettings(ProducerSettings, frozen=True, kw_only=True):
    """All settings of a broker. `load` makes and checks this object; the constructor does not check.

    Attributes:
        cluster: Name of the cluster.
        group: Name of the broker group.
        slot: Number of this member in its broker group; the broker is called `<group>-<slot>`.
        data: The data directory.
        listen: `host:port` for clients, and for calls of other brokers.
        advertise: `host:port` at which clients reach this broker, and other brokers too unless their `peers` names
            it. Default: `listen`.
        external_listen: `host:port` of a second port, for clients outside the network of the brokers. Over it, a client
            is sent only the external addresses of brokers. Default: this port is not opened.
        external_advertise: `host:port` at which clients outside reach `external_listen`.
        external_advertise_file: The same, in a file that the broker reads again every second, if an address is
            known only after the start. An empty file or none: there is no address yet. Give this or
            `external_advertise`, not both.
        coordinator: `host:port` of each member of etcd, or of the embedded coordinator.
        peers: Addresses of other brokers, by name. They replace the addresses that those brokers registered.
        link_listen: `host:port` for the links of other brokers, which carry replication. They reach it at the host of
            `advertise`. Port 0: the system chooses one at each start. Default: see `links`.
        link_peers: As `peers`, for the `link_listen` of other brokers. It names those that `peers` names.
        stream_listen: `host:port` of a port for streams of clients over TCP, which cost less than streams over gRPC.
            Clients reach it at the host at which they reach `listen`. Default: this port is not opened, and clients
            use gRPC. Clients outside (`external_listen`) always do.
        stream_advertise_port: The port at which clients reach `stream_listen`, if it is another one. Default: that of
            `stream_listen`.
        admin_listen: `host:port` of metrics and health. Default: this port is not opened.
        tls_cert, tls_key, tls_ca: PEM files of the broker's certificate, its private key, and the CA of brokers and
            clients. Give all three, and every port speaks TLS; or give none. The broker reads them again when they
            change.
        tls_client_auth: `required`: clients and other brokers must show a certificate of the CA. `optional`: they need
            none, and then every program that reaches the port can do what a broker can do.
        coordinator_tls_ca: CA of the coordinator's certificate. If it is given, the broker uses TLS to the coordinator.
        coordinator_tls_cert, coordinator_tls_key: The certificate that the broker shows to the coordinator, and its
            key. Give both or none.
        status_file: The file in which this process writes its member run and why it ended. Default: no file.
        replace_disk: This empty directory takes the slot of a disk that is lost for good. The administrator who sets
            this vouches that the old process has ended.
        replace_disk_of: The same, but only if the slot's disk is this incarnation. If the slot has another one, the
            broker does not start.
        heal_after_s: The controller has a member's sealed segments copied to other brokers when the member has been
            away for this many seconds.
        deleted_kept_s: For this many seconds the coordinator keeps the cursors of a deleted consumer group and the
            tombstones of a deleted topic. Then the controller replaces them by records of bounded size that prove the
            same.
        retention_look_s: Seconds between two scans for messages that retention may drop, in the partitions whose open
            segment this broker leads. A topic that keeps less than six times this is scanned more often.
        segment_age_s_max: Maximum age of an open segment of a topic with retention. Then the broker ends the segment.
        segment_size_bytes_max: Maximum size of such a segment, likewise.
        join_deadline_s: Seconds for which a start waits for the coordinator.
        stop_deadline_s: Seconds that a graceful stop may take to hand over open segments.
        batch_size_bytes_max: Maximum size of the body of a batch.
        in_flight_size_bytes_max: Maximum size of the batches that the broker took and has not answered, over all
            streams.
        head_cache_size_bytes_max: Maximum memory for the newest batches of open segments, from which consumers read.
        forwarding_size_bytes_max: Maximum memory for messages on their way to dead-letter topics, over all consumer
            groups. Above it, others wait on the disk until these are stored.
        retry_cache_size_bytes_max: Maximum memory for messages on which consumers failed, and that come again, over
            all consumer groups. Above it, each attempt reads its message from the disk.
        balance_interval_s: Seconds between two measurements of traffic by the controller. 0: only when an administrator
            asks.
        balance_moves_per_s: Maximum number of open segments that the controller moves in a second.
        balance_threshold: How much the busiest broker group, or the busiest master in a broker group, may be above the
            mean, as a ratio.
        balance_floor_bytes_per_s: If the mean traffic of a broker group is below this, the controller moves nothing.
            Each batch counts as 64 KiB more than its bytes.
        balance_steady_s: The controller moves nothing from or to a broker group for this many seconds after a change in
            it.
        balance_move_again_s: The controller does not move an open segment again for this many seconds.
        group_series_max: Maximum number of consumer groups that have metrics of their own on each broker: those with
            the most unacknowledged messages. The others are added up.
        topic_series_max: Maximum number of topics that have metrics of their own on each broker: those that took the
            most bytes lately. The others are added up.
        log_level: The least severe level that is written.
        disk_reserve_percent: The part of the disk that is kept free of new messages.
        disk_reserve_size_bytes_min: Minimum space that is kept free, but at most a fifth of the disk.
        disk_hang_ms: The disk *hangs* if it has completed no write for this long, although a write waits. Then this
            broker is not ready, and the other members continue without it. Set it above the longest pause of a disk
            that works.
        disk_hang_dead_s: When the disk has hung for this many seconds, /healthz answers 503, so that a supervisor ends
            the process. 0: never.
        heartbeat_ms, silence_ms, serve_lease_ms, planned_switch_ms: Times of the core; see `core.values.config`.
    """

    cluster: str
    group: str
    slot: Annotated[int, Meta(ge=0, le=15)]
    data: Path
    listen: str
    advertise: str = ""
    external_listen: str = ""
    external_advertise: str = ""
    external_advertise_file: Path | None = None
    coordinator: tuple[str, ...]
    peers: dict[str, str] = field(default_factory=dict)
    link_listen: str = ""
    link_peers: dict[str, str] = field(default_factory=dict)
    stream_listen: str = ""
    stream_advertise_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    admin_listen: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    tls_client_auth: Literal["required", "optional"] = "required"
    coordinator_tls_cert: Path | None = None
    coordinator_tls_key: Path | None = None
    coordinator_tls_ca: Path | None = None
    status_file: Path | None = None
    replace_disk: bool = False
    replace_disk_of: str = ""
    heal_after_s: _Positive = 600.0
    deleted_kept_s: _NotNegative = 7 * 86400.0
    retention_look_s: _Positive = 60.0
    segment_age_s_max: _Positive = 86400.0
    segment_size_bytes_max: Annotated[int, Meta(ge=16 * _MIB)] = 16 * 1024 * _MIB
    join_deadline_s: _Positive = 30.0
    stop_deadline_s: _NotNegative = 3.0
    batch_size_bytes_max: Annotated[int, Meta(ge=1024, le=_MIB)] = _MIB
    in_flight_size_bytes_max: Annotated[int, Meta(ge=_MIB)] = 64 * _MIB
    head_cache_size_bytes_max: Annotated[int, Meta(ge=0)] = 64 * _MIB
    forwarding_size_bytes_max: Annotated[int, Meta(ge=_MIB)] = 64 * _MIB
    retry_cache_size_bytes_max: Annotated[int, Meta(ge=0)] = 16 * _MIB
    balance_interval_s: _NotNegative = 30.0
    balance_moves_per_s: Annotated[float, Meta(gt=0, le=100)] = 2.0
    balance_threshold: Annotated[float, Meta(gt=0, le=10)] = 0.2
    balance_floor_bytes_per_s: _NotNegative = float(_MIB)
    balance_steady_s: _NotNegative = 30.0
    balance_move_again_s: _NotNegative = 300.0
    group_series_max: Annotated[int, Meta(ge=0, le=1000)] = 20
    topic_series_max: Annotated[int, Meta(ge=0, le=1000)] = 20
    log_level: str = "info"
    disk_reserve_percent: Annotated[int, Meta(ge=1, le=50)] = 5
    disk_reserve_size_bytes_min: Annotated[int, Meta(ge=0)] = 2048 * _MIB
    disk_hang_ms: Annotated[int, Meta(ge=100)] = 2000
    disk_hang_dead_s: _NotNegative = 30.0
    heartbeat_ms: Annotated[int, Meta(ge=10)] = 100
    silence_ms: Annotated[int, Meta(ge=50)] = 500
    serve_lease_ms: Annotated[int, Meta(ge=50)] = 300
    planned_switch_ms: Annotated[int, Meta(ge=10)] = 200

    @property
    def broker(self) -> str:
        """The broker's name."""
        return f"{self.group}-{self.slot}"

    @property
    def client_address(self) -> str:
        """The address at which clients reach this broker."""
        return self.advertise or self.listen

    @property
    def links(self) -> str:
        """`link_listen`, or the port that is `LINK_PORT_DISTANCE` above that of `listen`, below it if there is none.

        Port 0 stays 0: the system chooses one.
        """
        if self.link_listen:
            return self.link_listen
        host, _, text = self.listen.rpartition(":")
        port = int(text)
        if port:
            port += LINK_PORT_DISTANCE if port + LINK_PORT_DISTANCE <= PORT_MAX else -LINK_PORT_DISTANCE
        return f"{host}:{port}"

    def link_address(self, listening: str) -> str:
        """The address at which other brokers reach their port of this broker, which listens at `listening`."""
        return f"{self.client_address.rpartition(':')[0]}:{listening.rpartition(':')[2]}"

    @property
    def stream_port(self) -> int:
        """Where clients reach `stream_listen`; 0 if there is none, or if the system chooses it."""
        if not self.stream_listen:
            return 0
        return self.stream_advertise_port or int(self.stream_listen.rpartition(":")[2])

    def external_address(self) -> str:
        """The address for clients outside, as it is now; empty if there is none. It may read a file.

        Raises:
            OSError: The file is there, and cannot be read.
            ValueError: It has something that is no address.
        """
        if self.external_advertise_file is None:
            return self.external_advertise
        try:
            text = self.external_advertise_file.read_text().strip()
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as exc:
            raise ValueError(f"{self.external_advertise_file} is no text") from exc
        if text:
            check_address(text)
        return text

    @property
    def tls_files(self) -> TlsFiles | None:
        """The certificates of all ports; None for plain text."""
        return TlsFiles(self.tls_ca, self.tls_cert, self.tls_key) if self.tls_ca is not None else None

    @property
    def coordinator_tls_files(self) -> TlsFiles | None:
        """The certificates for the coordinator; None for plain text."""
        if self.coordinator_tls_ca is None:
            return None
        return TlsFiles(self.coordinator_tls_ca, self.coordinator_tls_cert, self.coordinator_tls_key)

    def core_config(self) -> BrokerConfig:
        """The times of the core, in microseconds as it wants them."""
        return BrokerConfig(
            heartbeat_us=self.heartbeat_ms * 1000,
            silence_us=self.silence_ms * 1000,
            disk_hang_us=self.disk_hang_ms * 1000,
            serve_lease_us=self.serve_lease_ms * 1000,
            planned_switch_us=self.planned_switch_ms * 1000,
            forwarding_bytes_max=self.forwarding_size_bytes_max,
            producers_max=self.producers_remembered,
            producer_protect_us=self.producer_protect_s * 1_000_000,
            producers_bytes_max=self.producer_tables_size_bytes_max,
        )


_FIELDS: Final = {known.name: known for known in fields(BrokerSettings)}
NAMES: Final = tuple(_FIELDS)
"""The names of all settings."""


def check_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`.

    Raises:
        ValueError: The text is not an address, or its port is above 65535.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"an address is written host:port, not {address!r}")
    return host, int(port)


def load(flags: Mapping[str, Any], file: Path | None, environment: Mapping[str, str] | None = None) -> BrokerSettings:
    """The settings from a file, the environment and flags. A later one of the three overrides an earlier one.

    Args:
        flags: Values by name. A flag that is None counts as not given.
        file: A TOML file; None: no file.
        environment: Variables by name; None: those of this process.

    Raises:
        BadRequestError: The file cannot be read; or a name is unknown (the error names the nearest known setting); or
            settings are missing or have wrong values (the error names all of them); or settings contradict each other.
    """
    table = _read_file(file) if file is not None else {}
    _check_names(table, f"in {file}")
    variables = _read_environment(os.environ if environment is None else environment)
    given = {**table, **variables, **{name: value for name, value in flags.items() if value is not None}}
    problems = [f"{name}: is not given" for name, known in _FIELDS.items() if known.required and name not in given]
    values = {}
    for name, value in given.items():
        try:
            values[name] = _converted(name, value)
        except ValidationError as exc:
            problems.append(f"{name}: {_expected(_FIELDS[name].type) or exc}, not {reprlib.repr(value)}")
        except ValueError as exc:
            problems.append(f"{name}: {exc}")
    if not problems:
        settings = BrokerSettings(**values)
        problems = list(_contradictions(settings))
    if problems:
        raise BadRequestError("; ".join(problems))
    return settings


def _read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings among the variables.

    Other programs of Seriatim use the same prefix. So an unknown variable is refused only if its name is close to the
    name of a setting.
    """
    begin = len(ENVIRONMENT_PREFIX)
    capitals = {name.upper(): value for name, value in environment.items()}
    ours = {name[begin:].lower(): value for name, value in capitals.items() if name.startswith(ENVIRONMENT_PREFIX)}
    slips = [name for name in ours if difflib.get_close_matches(name, NAMES, 1, 0.8)]
    _check_names(slips, f"in the environment (after {ENVIRONMENT_PREFIX})")
    return {name: value for name, value in ours.items() if name in _FIELDS}


def _converted(name: str, value: object) -> Any:
    """The value in the setting's type. Variables and `--set` give text, also for numbers.

    Raises:
        ValidationError: The value has another type, or is outside of the setting's limits.
        ValueError: The value is no name or address, but the setting needs one.
    """
    if isinstance(value, str):
        value = _WRITTEN.get(name, str)(value.strip())
    converted = convert(value, _FIELDS[name].type, strict=False, dec_hook=_path)
    if name in _CHECKS:
        _CHECKS[name](converted)
    return converted


def _expected(kind: Any) -> str:
    """What a value of this type must be, in words; empty if the error shows msgspec's own message."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    base, limits = (get_args(kind)[0], get_args(kind)[1:]) if get_origin(kind) is Annotated else (kind, ())
    words = [_WORDS[base]] if base in _WORDS else []
    for limit in limits:
        words += [
            f"{word} {end:,g}"
            for word, end in zip(_LIMITS, (limit.ge, limit.gt, limit.le), strict=True)
            if end is not None
        ]
    return ", ".join(words)


_WORDS: Final = {bool: "true, false, 1 or 0", int: "a whole number", float: "a number", str: "a text"}
_LIMITS: Final = ("at least", "above", "at most")


def _path(kind: type, value: object) -> Path:
    assert kind is Path, kind
    if not isinstance(value, (str, Path)):
        raise ValueError("a path is written as text")
    return Path(value)


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _addresses_by_name(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    if not all(name and separator for name, separator, _ in pairs):
        raise ValueError("written name=host:port,name=host:port")
    return {name: address for name, _, address in pairs}


_WRITTEN: Final[Mapping[str, Callable[[str], object]]] = {
    "coordinator": _addresses,
    "peers": _addresses_by_name,
    "link_peers": _addresses_by_name,
}
"""Parsers of settings that have several parts, if they are given as text."""


def _check_name(value: str) -> None:
    if not is_legal_name(value):
        raise ValueError(NAME_RULE)


def _check_address_if_any(value: str) -> None:
    if value:
        check_address(value)


def _check_addresses(values: Iterable[str]) -> None:
    for value in values:
        check_address(value)


def _check_coordinator(value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError("at least one address")
    _check_addresses(value)


_CHECKS: Final[Mapping[str, Callable[[Any], None]]] = {
    "cluster": _check_name,
    "group": _check_name,
    "listen": _check_address_if_any,
    "advertise": _check_address_if_any,
    "external_listen": _check_address_if_any,
    "external_advertise": _check_address_if_any,
    "admin_listen": _check_address_if_any,
    "coordinator": _check_coordinator,
    "peers": lambda value: _check_addresses(value.values()),
    "link_listen": _check_address_if_any,
    "link_peers": lambda value: _check_addresses(value.values()),
    "stream_listen": _check_address_if_any,
}


def _contradictions(settings: BrokerSettings) -> Iterator[str]:
    """Settings that are right one by one, but not together."""
    if len({file is None for file in (settings.tls_cert, settings.tls_key, settings.tls_ca)}) > 1:
        yield "tls_cert, tls_key and tls_ca come together: all three, or none for plain text"
    if (settings.coordinator_tls_cert is None) != (settings.coordinator_tls_key is None):
        yield "coordinator_tls_cert and coordinator_tls_key come together"
    if settings.coordinator_tls_cert is not None and settings.coordinator_tls_ca is None:
        yield "coordinator_tls_ca is missing: without it the broker cannot check the coordinator's certificate"
    advertised = (settings.external_advertise, settings.external_advertise_file)
    if settings.external_listen and not any(advertised):
        yield "external_listen needs external_advertise or external_advertise_file, so that clients learn an address"
    if any(advertised) and not settings.external_listen:
        yield "external_advertise and external_advertise_file need external_listen, the port to which the address leads"
    if all(advertised):
        yield "external_advertise and external_advertise_file are two ways to say one thing: give one of them"
    if _is_taken(settings.external_listen, settings.listen, settings.admin_listen):
        yield "external_listen must be a port of its own"
    if _is_taken(settings.links, settings.listen, settings.admin_listen, settings.external_listen):
        yield f"link_listen must be a port of its own, and {settings.links} is not"
    if set(settings.peers) != set(settings.link_peers):
        yield "peers and link_peers name the same brokers: one leads their calls, the other their links"
    if _is_taken(
        settings.stream_listen, settings.listen, settings.admin_listen, settings.external_listen, settings.links
    ):
        yield "stream_listen must be a port of its own"
    if settings.stream_advertise_port and not settings.stream_listen:
        yield "stream_advertise_port needs stream_listen, the port to which it leads"
    if settings.heartbeat_ms >= settings.serve_lease_ms:
        yield "heartbeat_ms must be below serve_lease_ms: a serving right must last longer than a heartbeat interval"


def _is_taken(address: str, *others: str) -> bool:
    """Whether another port has this address. Port 0 is always another port."""
    return bool(address) and not address.endswith(":0") and address in others


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise BadRequestError(f"the settings in {file} cannot be read: {exc}") from exc


def _check_names(names: Iterable[str], where: str) -> None:
    for name in names:
        if name not in _FIELDS:
            nearest = difflib.get_close_matches(name, NAMES, 1, 0.0)
            raise BadRequestError(f"there is no setting {name!r} ({where}); the nearest is {nearest[0]!r}")
