"""The options of the reader: their names, forms, limits and defaults. Pure. The options of the writer are in
`writing.sink_options`, which reads them with functions of this module.

Spark gives option names in lower case, and adds some options of its own. No option holds a secret: certificates and
keys are paths of files, and the driver and each executor must have these files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

from seriatim_api.ids import is_legal_name

from seriatim_spark.columns import DEFAULT_COLUMNS, chosen
from seriatim_spark.errors import OptionError
from seriatim_spark.offsets import StartOrEnd, parse_user_offsets

Ordering = Literal["partition", "none"]

TOPICS_MAX: Final = 100
CUT_BYTES_MIN: Final = 1 << 16

_OF_SPARK: Final = frozenset({"checkpointlocation", "outputmode", "queryname"})
"""Options of Spark itself that also reach the source."""

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE: Final = re.compile(r"(\d+)\s*(b|kib|mib|gib|k|m|g|kb|mb|gb)?")
_UNIT_BYTES: Final = {
    None: 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3,
}  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster, and how to connect to it. Targets with the same fields share one client."""

    bootstrap: str
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_server_name: str | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The checked options of a reader.

    Attributes:
        target: The cluster.
        topics: Names, sorted.
        partitions: Numbers to read of each topic; None: all.
        columns: Names of the columns, in their order.
        start: Where to begin: "earliest", "latest", a time, or places by topic and partition.
        end: Where to end, in the same forms; None: at the ends that the partitions have when the query asks.
        ordering: `partition`: one task reads the whole range of a partition. `none`: several tasks share a range.
        min_partitions: The least number of Spark partitions; None: the number of rows decides.
        cut_bytes: With `ordering=none`: about how many bytes one Spark partition gets.
        fail_on_data_loss: Whether the query fails if messages that it needs are gone.
        read_timeout_s: Seconds for which a task or a request tries again if no broker answers.
        max_rows, max_bytes: The most that one micro-batch reads; None: no limit.
        min_rows: A micro-batch waits until there are this many messages; 0: it does not wait.
        trigger_delay_s: Seconds after which it waits no longer for `min_rows`.
    """

    target: Target
    topics: tuple[str, ...]
    partitions: frozenset[int] | None = None
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    start: StartOrEnd = "earliest"
    end: StartOrEnd | None = None
    ordering: Ordering = "partition"
    min_partitions: int | None = None
    cut_bytes: int = 128 << 20
    fail_on_data_loss: bool = True
    read_timeout_s: float = 30.0
    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int = 0
    trigger_delay_s: float = 900.0


def duration(text: str) -> float:
    """Seconds of a text such as 500ms, 30s, 15m, 12h or 7d.

    Raises:
        ValueError: The text does not have this form, or the time is 0.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise ValueError("a time such as 500ms, 30s or 15m")
    return float(found[1]) * _UNIT_S[found[2]]


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or int(found[1]) <= 0:
        raise ValueError("a size such as 1048576, 64MiB or 1GB")
    return int(found[1]) * _UNIT_BYTES[found[2]]


def _cut(text: str) -> int:
    size = _size(text)
    if size < CUT_BYTES_MIN:
        raise ValueError("a size of at least 64KiB")
    return size


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,15}", text.strip()) or int(text) == 0:
        raise ValueError("a whole number above 0")
    return int(text)


def _boolean(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.strip().lower() == "true"


def _ordering(text: str) -> Ordering:
    match text.strip().lower():
        case "partition":
            return "partition"
        case "none":
            return "none"
    raise ValueError("partition or none")


def _topics(text: str) -> tuple[str, ...]:
    names = sorted({name.strip() for name in text.split(",")})
    if not all(map(is_legal_name, names)) or len(names) > TOPICS_MAX:
        raise ValueError(f"the name of a topic, or up to {TOPICS_MAX} with commas between them")
    return tuple(names)


def _partitions(text: str) -> frozenset[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part)
        if found is None or int(found[1]) > int(found[2] or found[1]):
            raise ValueError("numbers of partitions such as 0,3 or 0-15")
        numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return frozenset(numbers)


def _bootstrap(text: str) -> str:
    addresses = [address.strip() for address in text.split(",") if address.strip()]
    if not addresses or not all(re.fullmatch(r".+:\d{1,5}", address) for address in addresses):
        raise ValueError("host:port of a broker, or several with commas between them")
    return ",".join(addresses)


def _path(text: str) -> str:
    if "-----BEGIN" in text or "\n" in text:
        raise ValueError(
            "the path of a file on each node; you gave the content: put it into a file, and replace a key, because "
            "logs may show it now"
        )
    if not text.strip():
        raise ValueError("the path of a file")
    return text


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("a host name")
    return text.strip()


def _time(text: str) -> datetime:
    text = text.strip()
    if re.fullmatch(r"\d{1,14}", text):
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = datetime.min  # noqa: DTZ901 - refused below
    if time.tzinfo is None or time.year < 1970:
        raise ValueError("a time with its zone such as 2026-01-31T10:00Z, or milliseconds since 1970")
    return time


FORMS: Final[dict[str, Callable[[str], Any]]] = {
    "bootstrap": _bootstrap,
    "topic": _topics,
    "partitions": _partitions,
    "columns": chosen,
    "startingOffsets": parse_user_offsets,
    "endingOffsets": parse_user_offsets,
    "startingTimestamp": _time,
    "endingTimestamp": _time,
    "ordering": _ordering,
    "minPartitions": _count,
    "maxBytesPerPartition": _cut,
    "failOnDataLoss": _boolean,
    "readTimeout": duration,
    "maxRowsPerTrigger": _count,
    "maxBytesPerTrigger": _size,
    "minRowsPerTrigger": _count,
    "maxTriggerDelay": duration,
    "tlsCa": _path,
    "tlsCert": _path,
    "tlsKey": _path,
    "tlsServerName": _name,
}
"""Each option with the function that reads its text, in the order of the documentation."""

_FIELDS: Final = {
    "topic": "topics", "partitions": "partitions", "columns": "columns", "ordering": "ordering",
    "minPartitions": "min_partitions", "maxBytesPerPartition": "cut_bytes", "failOnDataLoss": "fail_on_data_loss",
    "readTimeout": "read_timeout_s", "maxRowsPerTrigger": "max_rows", "maxBytesPerTrigger": "max_bytes",
    "minRowsPerTrigger": "min_rows", "maxTriggerDelay": "trigger_delay_s",
}  # fmt: skip
_TLS: Final = {"tlsCa": "tls_ca", "tlsCert": "tls_cert", "tlsKey": "tls_key", "tlsServerName": "tls_server_name"}

NAMES: Final = tuple(FORMS)
TARGET_NAMES: Final = ("bootstrap", *_TLS)
"""The options that say which cluster to use, and how to connect to it."""

assert set(_FIELDS.values()) < {field.name for field in fields(ReadOptions)}


def parse_target(given: Mapping[str, str]) -> Target:
    """Check the options of a caller that needs only the cluster and reads no topic.

    Raises:
        OptionError: An option is unknown, missing, not of its form, or does not concern the connection.
    """
    return target_of(read_options(given, {name: FORMS[name] for name in TARGET_NAMES}))


def parse(given: Mapping[str, str]) -> ReadOptions:
    """Check the options that Spark hands over.

    Args:
        given: The text of each option, by name. Upper and lower case do not matter.

    Raises:
        OptionError: An option is unknown, missing, not of its form, or contradicts another one.
    """
    found = read_options(given, FORMS)
    target = target_of(found)
    if "topic" not in found:
        raise OptionError("the option topic is missing: give the name of a topic, or several with commas between them")
    for offsets, timestamp in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
        if offsets in found and timestamp in found:
            raise OptionError(f"{offsets} and {timestamp} both say where the range is cut: give only one of them")
    if found.get("endingOffsets") == "earliest":
        raise OptionError("a range cannot end at earliest: leave endingOffsets out, or give latest or offsets")
    if "maxBytesPerPartition" in found and found.get("ordering") != "none":
        raise OptionError("maxBytesPerPartition cuts the ranges of partitions: give it only with ordering=none")
    start = found.get("startingOffsets", found.get("startingTimestamp", "earliest"))
    end = found.get("endingOffsets", found.get("endingTimestamp"))
    for name, places in (("startingOffsets", start), ("endingOffsets", end)):
        others = sorted(set(places) - set(found["topic"])) if isinstance(places, dict) else []
        if others:
            raise OptionError(f"{name} names {', '.join(others)}, which the option topic does not name")
    if isinstance(start, datetime) and isinstance(end, datetime) and start > end:
        raise OptionError("startingTimestamp is later than endingTimestamp: swap them, or leave one out")
    values = {field: found[name] for name, field in _FIELDS.items() if name in found}
    options = ReadOptions(target=target, start=start, end=None if end == "latest" else end, **values)
    if options.max_rows is not None and options.min_rows > options.max_rows:
        raise OptionError("minRowsPerTrigger is above maxRowsPerTrigger")
    return options


def target_of(found: Mapping[str, Any]) -> Target:
    """The cluster that checked options name.

    Raises:
        OptionError: `bootstrap` is missing, `tlsCa` is missing beside other TLS options, or one of `tlsCert` and
            `tlsKey` is given alone.
    """
    if "bootstrap" not in found:
        raise OptionError("the option bootstrap is missing: give host:port of a broker")
    tls = {field: found[name] for name, field in _TLS.items() if name in found}
    if tls and "tlsCa" not in found:
        raise OptionError("tlsCa is missing: give the path of the CA's certificates, which turns TLS on")
    if ("tlsCert" in found) != ("tlsKey" in found):
        raise OptionError("one of tlsCert and tlsKey is missing: give both, or neither")
    return Target(found["bootstrap"], **tls)


def read_options(
    given: Mapping[str, str], forms: Mapping[str, Callable[[str], Any]], elsewhere: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Read the given options into values, under the names that the documentation has.

    Args:
        given: The text of each option, by name. Upper and lower case do not matter. Spark's own options are left out.
        forms: Each known option with the function that reads its text.
        elsewhere: Options that are known but mean nothing here, each with the text of its error.

    Raises:
        OptionError: An option is unknown, or not of its form.
    """
    by_lower = {name.lower(): name for name in forms}
    others = {name.lower(): text for name, text in (elsewhere or {}).items()}
    found: dict[str, Any] = {}
    for key, text in given.items():
        if key.lower() in _OF_SPARK:
            continue
        name = by_lower.get(key.lower())
        if name is None:
            raise OptionError(others.get(key.lower()) or _unknown(key, by_lower))
        try:
            found[name] = forms[name](str(text))
        except ValueError as exc:
            shown = "" if name in _TLS else f", not {_short(str(text))!r}"  # the text may be a key
            raise OptionError(f"the option {name} is {exc}{shown}") from None
    return found


def _unknown(key: str, by_lower: Mapping[str, str]) -> str:
    if key.lower() == "path":
        return "there is no path: give the topic with the option topic, and call load(), save() or start() without one"
    near = difflib.get_close_matches(key.lower(), by_lower, 1, 0.6)
    meant = f": did you mean {by_lower[near[0]]}?" if near else f"; there are {', '.join(by_lower.values())}"
    return f"there is no option {_short(key)!r}{meant}"


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
