"""Checks that both topics have the same rows in order, and that the table has the last event of each aircraft."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from seriatim import Client
from seriatim_api.ids import format_offset

HEADER = "replay-of"


@dataclass(slots=True)
class Comparison:
    """The number of rows that were compared, and every difference as human-readable text.

    A good run has no difference.
    """

    rows: int = 0
    problems: list[str] = field(default_factory=list)


async def rows_of(client: Client, topic: str, partition: int) -> tuple[pa.Table, list[int]]:
    """Read all rows of a partition, and their offsets."""
    tables: list[pa.Table] = []
    offsets: list[int] = []
    async with await client.read_range(topic, partition) as reader:
        while (found := await reader.fetch_table()) is not None:
            tables.append(found.table)
            offsets += range(found.offset, found.offset + found.table.num_rows)
    empty = pa.table({name: pa.array([], pa.binary()) for name in ("key", "value")})
    return (pa.concat_tables(tables) if tables else empty), offsets


async def compare_topics(client: Client, first: str, second: str, partitions: int) -> Comparison:
    """Compare key, value and time of each row. The header `replay-of` must name the same row of the first topic."""
    found = Comparison()
    for partition in range(partitions):
        source, offsets = await rows_of(client, first, partition)
        copy, _ = await rows_of(client, second, partition)
        where = f"partition {partition}"
        if source.num_rows != copy.num_rows:
            found.problems.append(f"{where}: {source.num_rows} rows in {first}, {copy.num_rows} in {second}")
        for name in ("key", "value", "timestamp"):
            if source.num_rows and not source.column(name).equals(copy.column(name)):
                found.problems.append(f"{where}: the column {name} differs")
        if source.num_rows:
            places = [f"{first}/{partition}/{format_offset(offset)}".encode() for offset in offsets]
            named = pc.map_lookup(copy.column("headers").combine_chunks(), HEADER, "last")
            if named.to_pylist() != places:
                found.problems.append(f"{where}: rows are not where they were")
        found.rows += copy.num_rows
    return found


def compare_states(table: pa.Table, events: pa.Table) -> Comparison:
    """Compare the table of the newest value of each key with the last event of each aircraft in the file's order."""
    expected, found = (
        dict(zip(one["key"].to_pylist(), one["value"].to_pylist(), strict=True)) for one in (events, table)
    )
    problems = []
    if found != expected:
        wrong = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
        problems.append(f"{len(wrong)} aircraft have another state, such as {wrong[0]!r}")
    return Comparison(len(found), problems)
