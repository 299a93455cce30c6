"""A broker's settings: a TOML file, over it the environment (`SERIATIM_...`), over that the command line.

One frozen object, checked once at start. A name that is not known is refused, with the nearest one that is: a setting
that silently does nothing is found out in the worst hour.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import is_legal_name
from seriatim_api.tls import TlsFiles

from .core.config import BrokerConfig

ENVIRONMENT_PREFIX = "SERIATIM_"
_MIB = 1 << 20


class BrokerSettings(BaseSettings):
    """Everything that an operator can say to a broker.

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
        heartbeat_ms, silence_ms, serve_lease_ms, planned_switch_ms: Times of the core; see `core.config`.
    """

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="forbid")

    cluster: str
    group: str
    slot: int = Field(ge=0, le=15)
    data: Path
    listen: str
    advertise: str = ""
    coordinator: Annotated[tuple[str, ...], NoDecode]
    peers: Annotated[dict[str, str], NoDecode] = Field(default_factory=dict)
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
    heal_after_s: float = Field(default=600.0, gt=0)
    join_deadline_s: float = Field(default=30.0, gt=0)
    stop_deadline_s: float = Field(default=3.0, ge=0)
    batch_size_bytes_max: int = Field(default=_MIB, ge=1024, le=_MIB)
    in_flight_size_bytes_max: int = Field(default=64 * _MIB, ge=_MIB)
    head_cache_size_bytes_max: int = Field(default=64 * _MIB, ge=0)
    balance_interval_s: float = Field(default=30.0, ge=0)
    balance_moves_per_s: float = Field(default=2.0, gt=0, le=100)
    balance_threshold: float = Field(default=0.2, gt=0, le=10)
    balance_floor_bytes_per_s: float = Field(default=_MIB, ge=0)
    balance_steady_s: float = Field(default=30.0, ge=0)
    balance_move_again_s: float = Field(default=300.0, ge=0)
    log_level: str = "info"
    heartbeat_ms: int = Field(default=100, ge=10)
    silence_ms: int = Field(default=500, ge=50)
    serve_lease_ms: int = Field(default=300, ge=50)
    planned_switch_ms: int = Field(default=200, ge=10)

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
            serve_lease_us=self.serve_lease_ms * 1000,
            planned_switch_us=self.planned_switch_ms * 1000,
        )

    @field_validator("cluster", "group")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not is_legal_name(value):
            raise ValueError("letters, digits, '.', '_' and '-', beginning with a letter or digit")
        return value

    @field_validator("listen", "advertise", "admin_listen")
    @classmethod
    def _check_address(cls, value: str) -> str:
        if value:
            check_address(value)
        return value

    @field_validator("coordinator", mode="before")
    @classmethod
    def _split_addresses(cls, value: object) -> object:
        return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value

    @field_validator("coordinator")
    @classmethod
    def _check_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("at least one address")
        for address in value:
            check_address(address)
        return value

    @field_validator("peers", mode="before")
    @classmethod
    def _split_peers(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in value.split(",") if part]
        if not all(name and separator for name, separator, _ in pairs):
            raise ValueError("written name=host:port,name=host:port")
        return {name: address for name, _, address in pairs}

    @field_validator("peers")
    @classmethod
    def _check_peers(cls, value: dict[str, str]) -> dict[str, str]:
        for address in value.values():
            check_address(address)
        return value

    @model_validator(mode="after")
    def _check_tls(self) -> BrokerSettings:
        if len({file is None for file in (self.tls_cert, self.tls_key, self.tls_ca)}) > 1:
            raise ValueError("tls_cert, tls_key and tls_ca come together: all three, or none for plain text")
        if (self.coordinator_tls_cert is None) != (self.coordinator_tls_key is None):
            raise ValueError("coordinator_tls_cert and coordinator_tls_key come together")
        if self.coordinator_tls_cert is not None and self.coordinator_tls_ca is None:
            raise ValueError("coordinator_tls_ca is missing: whom to believe that it is the coordinator")
        return self

    @model_validator(mode="after")
    def _check_times(self) -> BrokerSettings:
        if self.heartbeat_ms >= self.serve_lease_ms:
            raise ValueError("heartbeat_ms must be below serve_lease_ms: a lease outlives a heartbeat")
        return self


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
        BadRequestError: An unknown name, with the nearest known one; or a value that is none.
    """
    environment = os.environ if environment is None else environment
    known = BrokerSettings.model_fields
    table = _read_file(file) if file is not None else {}
    _check_names(table, known, f"in {file}")
    names = [name[len(ENVIRONMENT_PREFIX) :].lower() for name in environment if name.startswith(ENVIRONMENT_PREFIX)]
    # Other programs of the same family read this environment too: only what looks like a slip of ours is refused.
    slips = [name for name in names if difflib.get_close_matches(name, known, 1, 0.8)]
    _check_names(slips, known, f"in the environment (after {ENVIRONMENT_PREFIX})")

    class Loaded(BrokerSettings):
        """With the file of this start as its weakest source."""

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, _Table(settings_cls, table)

    try:
        return Loaded(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as exc:
        problems = [f"{'.'.join(map(str, problem['loc'])) or 'settings'}: {problem['msg']}" for problem in exc.errors()]
        raise BadRequestError("; ".join(problems)) from exc


class _Table(PydanticBaseSettingsSource):
    """A table that was read already."""

    def __init__(self, settings_cls: type[BaseSettings], table: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self._table = dict(table)

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return self._table.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._table


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise BadRequestError(f"the settings in {file} cannot be read: {exc}") from exc


def _check_names(names: Iterable[str], known: Iterable[str], where: str) -> None:
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, list(known), 1, 0.0)
            raise BadRequestError(f"there is no setting {name!r} ({where}); the nearest is {nearest[0]!r}")
