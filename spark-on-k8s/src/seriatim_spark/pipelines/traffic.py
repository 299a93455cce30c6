"""`traffic`: shows the rate of a topic, the partitions and keys with most messages, and the lag of its readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from seriatim_api.key_names import key_shown

from seriatim_spark.connection import connected
from seriatim_spark.options import parse
from seriatim_spark.pipelines.session import session

if TYPE_CHECKING:
    from seriatim import GroupDescription

STEPS: Final = 60
"""The number of points of the curve."""

GROUPS_MAX: Final = 50
"""The most consumer groups whose lag is asked for."""

PARTITIONS_SHOWN: Final = 32


@dataclass(frozen=True, slots=True)
class PartitionTraffic:
    """Messages of a partition, and the bytes of their values."""

    partition: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class KeyTraffic:
    """Messages of a key, and the bytes of their values. The key is in the notation for humans."""

    key: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Messages that a group has not read. `unknown` is the number of partitions whose lag is not known."""

    group: str
    lag: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of a topic.

    Attributes:
        begin, step_s: When the curve begins (seconds since 1970), and the seconds from one point to the next.
        rates: Messages in a second, for each point.
        skew: The messages of the partition with most messages, as a multiple of the mean.
    """

    topic: str
    begin: float
    step_s: float
    rates: tuple[float, ...]
    partitions: tuple[PartitionTraffic, ...]
    keys: tuple[KeyTraffic, ...]
    groups: tuple[GroupLag, ...]
    skew: float

    @property
    def rows(self) -> int:
        """The number of all messages."""
        return sum(one.rows for one in self.partitions)

    @property
    def size_bytes(self) -> int:
        """The bytes of all values."""
        return sum(one.size_bytes for one in self.partitions)

    def as_dict(self) -> dict[str, Any]:
        """Return the traffic as plain data for programs."""
        return asdict(self) | {"rows": self.rows, "size_bytes": self.size_bytes}


def summed_up(
    topic: str,
    begin: float,
    step_s: float,
    counted: Sequence[tuple[int, int, int, int]],
    partition_count: int,
    keys: Sequence[KeyTraffic],
    groups: Sequence[GroupLag],
) -> Traffic:
    """Put the counts together.

    Args:
        topic: The name of the topic.
        begin: Seconds since 1970.
        step_s: Seconds from one point of the curve to the next.
        counted: (partition, point, messages, bytes). Partitions and points without messages are left out.
        partition_count: The number of partitions of the topic.
        keys: The keys with most messages.
        groups: The consumer groups of the topic.
    """
    rates = [0.0] * STEPS
    rows = dict.fromkeys(range(partition_count), 0)
    sizes = dict.fromkeys(range(partition_count), 0)
    for partition, point, count, size in counted:
        rates[min(max(point, 0), STEPS - 1)] += count / step_s
        rows[partition] = rows.get(partition, 0) + count
        sizes[partition] = sizes.get(partition, 0) + size
    total = sum(rows.values())
    skew = max(rows.values()) * len(rows) / total if total else 1.0
    partitions = tuple(PartitionTraffic(number, rows[number], sizes[number]) for number in sorted(rows))
    return Traffic(topic, begin, step_s, tuple(rates), partitions, tuple(keys), tuple(groups), skew)


def run(source: Mapping[str, str], *, last_s: float, top: int) -> Traffic:
    """Count the messages that brokers took in the last `last_s` seconds."""
    from pyspark.sql import functions as f

    options = parse(source)
    (topic,) = options.topics
    end = datetime.now(UTC)
    begin = end - timedelta(seconds=last_s)
    step_s = last_s / STEPS
    spark = session("traffic")
    rows = (
        spark.read.format("seriatim")
        .options(**source)
        .option("startingTimestamp", begin.isoformat())
        .option("columns", "partition,append_time,key,value_size")
        .load()
    )
    size = f.coalesce(f.sum("value_size"), f.lit(0)).alias("size")  # messages without a value have no size
    point = f.floor((f.unix_micros("append_time") / 1e6 - begin.timestamp()) / step_s).cast("int")
    counted = (
        rows.withColumn("point", point).groupBy("partition", "point").agg(f.count("*").alias("rows"), size).collect()
    )
    hot = (
        rows.where("key is not null")
        .groupBy("key")
        .agg(f.count("*").alias("rows"), size)
        .orderBy(f.desc("rows"), "key")
        .limit(top)
        .collect()
    )
    keys = [KeyTraffic(key_shown(row["key"]), row["rows"], int(row["size"])) for row in hot]
    partition_count, groups = _groups(source, topic)
    return summed_up(
        topic, begin.timestamp(), step_s,
        [(row["partition"], row["point"], row["rows"], int(row["size"])) for row in counted],
        partition_count, keys, groups,
    )  # fmt: skip


def _groups(source: Mapping[str, str], topic: str) -> tuple[int, list[GroupLag]]:
    options = parse(source)
    connection = connected(options.target)
    admin = connection.client.admin()
    deadline_s = 2 * options.read_timeout_s
    described = connection.run(admin.describe_topic(topic), deadline_s)
    names = sorted(connection.run(admin.list_groups(topic), deadline_s))[:GROUPS_MAX]
    found = [lag_of(name, connection.run(admin.describe_group(topic, name), deadline_s)) for name in names]
    return described.topic.partition_count, sorted(found, key=lambda one: -one.lag)


def lag_of(name: str, group: GroupDescription) -> GroupLag:
    """Add up the lags of all partitions of a group."""
    lags = [row.lag for row in group.partitions]
    return GroupLag(name, sum(lag for lag in lags if lag is not None), sum(lag is None for lag in lags))


# ---- for humans ----


def as_text(found: Traffic) -> str:
    """Return the traffic as words and tables."""
    span_s = found.step_s * STEPS
    rates = (
        f"{found.rows / span_s:,.1f} a second on average, {max(found.rates):,.1f} at most (in {_seconds(found.step_s)})"
    )
    lines = [
        f"{found.topic}: {found.rows:,} messages, {_size(found.size_bytes)} in {_seconds(span_s)}: {rates}",
        f"the fullest of {len(found.partitions)} partitions has {found.skew:.2f} times the mean",
    ]
    fullest = sorted(found.partitions, key=lambda one: -one.rows)[:PARTITIONS_SHOWN]
    lines += _table(
        ("partition", "messages", "bytes", "share"),
        [(str(one.partition), f"{one.rows:,}", _size(one.size_bytes), _share(one.rows, found.rows)) for one in fullest],
    )
    if found.keys:
        shown = [(one.key, f"{one.rows:,}", _size(one.size_bytes), _share(one.rows, found.rows)) for one in found.keys]
        lines += ["", *_table(("key", "messages", "bytes", "share"), shown)]
    if found.groups:
        lags = [(one.group, f"{one.lag:,}" + (" at least" if one.unknown else "")) for one in found.groups]
        lines += ["", *_table(("group", "lag"), lags)]
    return "\n".join(lines)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _seconds(span_s: float) -> str:
    return f"{span_s:,.0f} s" if span_s >= 10 else f"{span_s:.3g} s"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


WIDTH: Final = 900
CURVE_HEIGHT: Final = 220
BAR_HEIGHT: Final = 18
LEFT: Final = 190
BLUE: Final = "#5b8db8"


def picture(found: Traffic) -> str:
    """Draw an SVG: the rate over time, then bars for the messages of each partition, of the keys with most messages,
    and the lag of each group.
    """
    fullest = sorted(found.partitions, key=lambda one: -one.rows)[:PARTITIONS_SHOWN]
    blocks = [
        ("messages of partitions", [(str(one.partition), one.rows) for one in fullest]),
        ("messages of the hottest keys", [(one.key, one.rows) for one in found.keys]),
        ("lag of groups, in messages", [(one.group, one.lag) for one in found.groups]),
    ]
    parts, top = _curve(found), CURVE_HEIGHT + 85
    for title, bars in blocks:
        if bars:
            parts.append(f'<text x="10" y="{top}" font-weight="bold">{escape(title)}</text>')
            parts += _bars(bars, top + 8)
            top += 40 + BAR_HEIGHT * len(bars)
    header = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 120}" height="{top}" '
        'font-family="sans-serif" font-size="13">'
    )
    return "\n".join([header, *parts, "</svg>", ""])


def _curve(found: Traffic) -> list[str]:
    most = max(found.rates) or 1.0
    step = WIDTH / (STEPS - 1)
    points = [
        f"{LEFT + number * step:.1f},{40 + CURVE_HEIGHT * (1 - rate / most):.1f}"
        for number, rate in enumerate(found.rates)
    ]
    begin, end = (
        datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        for at in (found.begin, found.begin + STEPS * found.step_s)
    )
    title = f"{found.topic}: messages a second, {found.rows:,} in {_seconds(found.step_s * STEPS)}"
    below = CURVE_HEIGHT + 56
    return [
        f'<text x="10" y="20" font-weight="bold">{escape(title)}</text>',
        f'<text x="10" y="48">{most:,.0f}</text>' if most >= 10 else f'<text x="10" y="48">{most:,.2g}</text>',
        f'<text x="10" y="{40 + CURVE_HEIGHT}">0</text>',
        f'<text x="{LEFT}" y="{below}">{begin}</text>',
        f'<text x="{LEFT + WIDTH}" y="{below}" text-anchor="end">{end}</text>',
        f'<line x1="{LEFT}" y1="{40 + CURVE_HEIGHT}" x2="{LEFT + WIDTH}" y2="{40 + CURVE_HEIGHT}" stroke="#999"/>',
        f'<polyline fill="none" stroke="{BLUE}" stroke-width="2" points="{" ".join(points)}"/>',
    ]


def _bars(bars: Sequence[tuple[str, int]], top: int) -> list[str]:
    most = max(value for _, value in bars) or 1
    parts = []
    for number, (name, value) in enumerate(bars):
        y, width = top + number * BAR_HEIGHT, max(1, WIDTH * value // most)
        parts.append(f'<text x="10" y="{y + 13}">{escape(name[:26])}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y + 2}" width="{width}" height="{BAR_HEIGHT - 4}" fill="{BLUE}"/>')
        parts.append(f'<text x="{LEFT + width + 6}" y="{y + 13}">{value:,}</text>')
    return parts
