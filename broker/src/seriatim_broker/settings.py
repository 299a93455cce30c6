"""A broker's settings: a TOML file, over it the environment (`SERIATIM_...`), over that the command line.

One frozen object, checked once at start. A name that is not known is refused, with the nearest one that is: a setting
that silently does nothing is found out in the worst hour. Values that are wrong are told all at once.

Every start of a broker pays for what it imports, and others wait for the processors meanwhile: so msgspec checks types
and limits here, see ADR 0018.
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
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import is_legal_name
from seriatim_api.tls import TlsFiles

from .core.values.config import BrokerConfig

ENVIRONMENT_PREFIX: Final = "SERIATIM_"
_MIB: Final = 1 << 20

_Positive = Annotated[float, Meta(gt=0)]
_NotNegative = Annotated[float, Meta(ge=0)]


class BrokerSettings(Struct, frozen=True, kw_only=True):
    """Everything that an operator can say to a broker. Made by `load`, which checks it; the constructor does not.

    Attributes:
        cluster: Name of the cluster.
        group: Name of the broker group.
        slot: Number of this member in its group; the broker is called `<group>-<slot>`.
        data: The data directory.
        listen: `host:port` for clients and peers.
        advertise: `host:port` under which clients (and peers without a map) reach it; `listen` if left out.
        coordinator: `host:port` of each member of etcd, or of the embedded coordinator.
        peers: Where other brokers are reached from here, by name, instead of where they registered.
        admin_listen: `host:port` of metrics and health; none if left out.
        tls_cert, tls_key, tls_ca: Files (PEM) of the broker's certificate, its private key, and the CA of brokers and
            clients. With them every port speaks TLS; all three or none. Read again when they change.
        tls_client_auth: Whether clients and peers must show a certificate of the CA (`required`), or need none
            (`optional`: then whoever reaches the port can do what a broker can).
        coordinator_tls_ca: CA of the coordinator's certificate; with it the coordinator is spoken to with TLS.
        coordinator_tls_cert, coordinator_tls_key: The certificate to show to the coordinator; both or none.
        status_file: Where this process says which run it is, and why it ended; none if left out.
        replace_disk: This empty directory takes the slot of a disk that is lost for good; whoever says so vouches that
            the old process is gone.
        replace_disk_of: The same for the disk of this incarnation only; while the slot has another one it is refused.
        heal_after_s: A member that was away for so long has its sealed segments copied elsewhere.
        deleted_kept_s: How long the coordinator keeps the cursors of a deleted consumer group and the tombstones of a
            deleted topic; then the controller replaces them by records of bounded size that prove the same.
        retention_look_s: Between two looks at what retention may drop in the partitions that this broker leads; those
            of a topic that keeps less than six times that are looked at more often.
        segment_age_s_max: An open segment of a topic with retention is ended when it is so old.
        segment_size_bytes_max: Likewise, when it has so many bytes.
        join_deadline_s: How long a start waits for the coordinator.
        stop_deadline_s: How long a graceful stop may take to hand over.
        batch_size_bytes_max: Largest body of a batch.
        in_flight_size_bytes_max: Batches taken and not answered, over all streams.
        head_cache_size_bytes_max: Newest batches kept in memory for consumers at the head.
        balance_interval_s: Between two looks of the controller at the balance of heads; 0: only when somebody asks.
        balance_moves_per_s: Heads moved a second, at most.
        balance_threshold: How much the busiest group, or master of a group, may be above the mean, as a ratio.
        balance_floor_bytes_per_s: A mean load of a group below this is not worth a move; a batch counts as 64 KiB.
        balance_steady_s: A group in which anything changed is left alone for so long.
        balance_move_again_s: A head that was moved is left where it is for so long.
        log_level: The least severe level that is written.
        disk_reserve_percent: Of the disk, kept free of new messages.
        disk_reserve_size_bytes_min: At least so much is kept free, but at most a fifth of the disk.
        disk_hang_ms: A disk that completed no write for so long, although one waits, hangs: the broker is not ready,
            and the others go on without it. Above the longest pause of a disk that works.
        disk_hang_dead_s: Once the disk hangs for so long, /healthz says 503, so that a supervisor ends the process;
            0: never.
        heartbeat_ms, silence_ms, serve_lease_ms, planned_switch_ms: Times of the core; see `core.values.config`.
    """

    cluster: str
    group: str
    slot: Annotated[int, Meta(ge=0, le=15)]
    data: Path
    listen: str
    advertise: str = ""
    coordinator: tuple[str, ...]
    peers: dict[str, str] = field(default_factory=dict)
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
    balance_interval_s: _NotNegative = 30.0
    balance_moves_per_s: Annotated[float, Meta(gt=0, le=100)] = 2.0
    balance_threshold: Annotated[float, Meta(gt=0, le=10)] = 0.2
    balance_floor_bytes_per_s: _NotNegative = float(_MIB)
    balance_steady_s: _NotNegative = 30.0
    balance_move_again_s: _NotNegative = 300.0
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
        """Where clients reach this broker."""
        return self.advertise or self.listen

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
        """The times of the core."""
        return BrokerConfig(
            heartbeat_us=self.heartbeat_ms * 1000,
            silence_us=self.silence_ms * 1000,
            disk_hang_us=self.disk_hang_ms * 1000,
            serve_lease_us=self.serve_lease_ms * 1000,
            planned_switch_us=self.planned_switch_ms * 1000,
        )


_FIELDS: Final = {known.name: known for known in fields(BrokerSettings)}
NAMES: Final = tuple(_FIELDS)
"""Of all settings."""


def check_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`.

    Raises:
        ValueError: It is none.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"an address is written host:port, not {address!r}")
    return host, int(port)


def load(flags: Mapping[str, Any], file: Path | None, environment: Mapping[str, str] | None = None) -> BrokerSettings:
    """The settings from a file, the environment and flags (those that are not None).

    Raises:
        BadRequestError: An unknown name, with the nearest known one; or all values that are none; or, if none is, what
            contradicts itself.
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
    """What is ours of it. Other programs of the same family read it too: only what looks like a slip is refused."""
    begin = len(ENVIRONMENT_PREFIX)
    capitals = {name.upper(): value for name, value in environment.items()}
    ours = {name[begin:].lower(): value for name, value in capitals.items() if name.startswith(ENVIRONMENT_PREFIX)}
    slips = [name for name in ours if difflib.get_close_matches(name, NAMES, 1, 0.8)]
    _check_names(slips, f"in the environment (after {ENVIRONMENT_PREFIX})")
    return {name: value for name, value in ours.items() if name in _FIELDS}


def _converted(name: str, value: object) -> Any:
    """A value of the setting's type: what a variable or `--set` brings is text, also for numbers.

    Raises:
        ValidationError, ValueError: It is none.
    """
    if isinstance(value, str):
        value = _WRITTEN.get(name, str)(value.strip())
    converted = convert(value, _FIELDS[name].type, strict=False, dec_hook=_path)
    if name in _CHECKS:
        _CHECKS[name](converted)
    return converted


def _expected(kind: Any) -> str:
    """What a value of this type is, for people; empty where msgspec's own words have to do."""
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


_WRITTEN: Final[Mapping[str, Callable[[str], object]]] = {"coordinator": _addresses, "peers": _addresses_by_name}
"""How settings of several parts are written where there is only text."""


def _check_name(value: str) -> None:
    if not is_legal_name(value):
        raise ValueError("letters, digits, '.', '_' and '-', beginning with a letter or digit")


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
    "admin_listen": _check_address_if_any,
    "coordinator": _check_coordinator,
    "peers": lambda value: _check_addresses(value.values()),
}


def _contradictions(settings: BrokerSettings) -> Iterator[str]:
    """What is wrong with settings that are right each for itself."""
    if len({file is None for file in (settings.tls_cert, settings.tls_key, settings.tls_ca)}) > 1:
        yield "tls_cert, tls_key and tls_ca come together: all three, or none for plain text"
    if (settings.coordinator_tls_cert is None) != (settings.coordinator_tls_key is None):
        yield "coordinator_tls_cert and coordinator_tls_key come together"
    if settings.coordinator_tls_cert is not None and settings.coordinator_tls_ca is None:
        yield "coordinator_tls_ca is missing: whom to believe that it is the coordinator"
    if settings.heartbeat_ms >= settings.serve_lease_ms:
        yield "heartbeat_ms must be below serve_lease_ms: a lease outlives a heartbeat"


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
