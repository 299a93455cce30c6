"""The work of the demo's consumer: the history of each aircraft; and the same history straight from the file.

`Rebuilder` folds events in the order of delivery. It sorts nothing and remembers no offsets. So an event that is
missing, repeated or out of order changes the bytes. (The consumer's program leaves out repeats that are flagged, by
their offsets.) `expected` finds the events and their order in another way: with plain Python over the rows of the file.
It shares with the fold only what an event does to a history. Of `flights` it uses only the unpacked file and two
constants.

The printed form of an aircraft is a line of totals, then a line for each flight in the order of its first event::

    N14228 at IAH; 9 events, 2 legs, 0 cancelled, 0 diverted, 6 min late out, 21 min late in
    UA1545 2013-01-01 EWR-IAH scheduled#0 delayed#2 departed#3+2 overdue#5 arrived#6+11

The number after `#` is the number of the event among those of the aircraft. The number after `+` or `-` is minutes
late or early.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from e2e.demo.flights import KINDS, SCHEDULE_LEAD_MINUTES, read_csv

IN_THE_AIR: Final = "in the air"
DIVERTED: Final = "somewhere else"
NOT_SEEN: Final = "unknown"

NICENESS: Final = 15
"""The program takes about ten seconds of a processor, beside a run."""


@dataclass(slots=True)
class _Aircraft:
    place: str = NOT_SEEN
    event_count: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    late_minutes: Counter[str] = field(default_factory=Counter)  # by kind
    flights: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, flight: str, to: str, late: int | None) -> None:
        """Add an event of a flight. `to` is where the flight should land."""
        minutes = "" if late is None else f"{late:+d}"
        self.flights[flight] = f"{self.flights.get(flight, '')} {kind}#{self.event_count}{minutes}"
        self.event_count += 1
        self.kinds[kind] += 1
        self.late_minutes[kind] += late or 0
        self.place = {"departed": IN_THE_AIR, "arrived": to, "diverted": DIVERTED}.get(kind, self.place)

    def printed(self, aircraft: str) -> bytes:
        """Return the printed form."""
        kinds, late = self.kinds, self.late_minutes
        totals = (
            f"{aircraft} at {self.place}; {self.event_count} events, {kinds['arrived']} legs, {kinds['cancelled']}"
            f" cancelled, {kinds['diverted']} diverted, {late['departed']} min late out, {late['arrived']} min late in"
        )
        return "".join(f"{line}\n" for line in (totals, *(name + rest for name, rest in self.flights.items()))).encode()


class Rebuilder:
    """Rebuilds each aircraft's history from its events, one event after another."""

    def __init__(self) -> None:
        self._aircraft: dict[bytes, _Aircraft] = defaultdict(_Aircraft)
        self.event_count = 0

    def apply(self, key: bytes, value: bytes) -> None:
        """Apply one event of an aircraft. Events must come in the order of delivery.

        Raises:
            ValueError, KeyError: The value is not one of the demo's events.
        """
        event = json.loads(value)
        flight = f"{event['flight']} {event['day']} {event['from']}-{event['to']}"
        self._aircraft[key].add(event["event"], flight, event["to"], event["late"])
        self.event_count += 1

    def apply_all(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Apply several events, in the order of delivery."""
        for key, value in zip(keys, values, strict=True):
            self.apply(key, value)

    def histories(self) -> dict[bytes, bytes]:
        """The history of each aircraft, in the printed form."""
        return {key: one.printed(key.decode()) for key, one in self._aircraft.items()}

    def to_bytes(self) -> bytes:
        """All histories in one canonical form.

        If each aircraft got the same events in the same order, the bytes are the same.
        """
        return canonical(self.histories())

    def digest(self) -> str:
        """SHA-256 of `to_bytes`, in hexadecimal."""
        return digest(self.histories())


def canonical(histories: Mapping[bytes, bytes]) -> bytes:
    """Join all histories, aircraft in the order of their names, because the order of deliveries across partitions is
    open.
    """
    return b"".join(histories[aircraft] for aircraft in sorted(histories))


def digest(histories: Mapping[bytes, bytes]) -> str:
    """SHA-256 of the canonical form, in hexadecimal."""
    return hashlib.sha256(canonical(histories)).hexdigest()


def differences(rebuilt: Mapping[bytes, bytes], wanted: Mapping[bytes, bytes], limit: int = 10) -> list[str]:
    """Describe the first line that differs, in a sentence for each of the first `limit` aircraft that differ; empty if
    all are equal.
    """
    differing = (key for key in sorted({*rebuilt, *wanted}) if rebuilt.get(key) != wanted.get(key))
    return [_difference(key.decode(), rebuilt.get(key), wanted.get(key)) for key in islice(differing, limit)]


def _difference(aircraft: str, rebuilt: bytes | None, wanted: bytes | None) -> str:
    if rebuilt is None or wanted is None:
        return f"{aircraft}: {'not rebuilt at all' if rebuilt is None else 'no such aircraft in the file'}"
    lines, wanted_lines = rebuilt.decode().splitlines(), wanted.decode().splitlines()
    for line, wanted_line in zip(lines, wanted_lines, strict=False):
        if line != wanted_line:
            return f"{aircraft}: {line!r}, but the file says {wanted_line!r}"
    return f"{aircraft}: {len(lines)} lines, but the file has {len(wanted_lines)}"


class _Row(NamedTuple):
    """A flight as in the file, with times in minutes of a calendar that begins with the year 1."""

    aircraft: str
    name: str
    dest: str
    due_out: int
    due_in: int
    out: int | None
    landed: int | None
    late_out: int | None
    late_in: int | None
    diverted: bool


def expected(limit: int | None = None) -> dict[bytes, bytes]:
    """Compute the history of each aircraft after the first `limit` events (None: all) straight from the file.

    All events take about 10 s.

    Raises:
        FlightsError: The data package is missing.
    """
    rows = [_row(fields) for fields in csv.DictReader(io.StringIO(read_csv().decode()))]
    moments = sorted(
        (minute, KINDS.index(kind), number) for number, row in enumerate(rows) for kind, minute in _moments(row)
    )
    found: dict[str, _Aircraft] = defaultdict(_Aircraft)
    for _minute, kind, number in moments[:limit]:
        row = rows[number]
        late = {"departed": row.late_out, "arrived": row.late_in}.get(KINDS[kind])
        found[row.aircraft].add(KINDS[kind], row.name, row.dest, late)
    return {aircraft.encode(): one.printed(aircraft) for aircraft, one in found.items()}


def _row(fields: dict[str, str]) -> _Row:
    midnight = date(int(fields["year"]), int(fields["month"]), int(fields["day"])).toordinal() * 1440
    due_out = midnight + _after_midnight(fields["sched_dep_time"])
    due_in = midnight + _after_midnight(fields["sched_arr_time"])
    late_out, late_in = _number(fields["dep_delay"]), _number(fields["arr_delay"])
    out = landed = None
    if late_out is not None:
        out = due_out + late_out
        if fields["arr_time"] != "NA":
            landed = out - out % 1440 + _after_midnight(fields["arr_time"])
            landed += 1440 if landed < out else 0
    flight = fields["carrier"] + fields["flight"]
    day = f"{fields['year']}-{int(fields['month']):02}-{int(fields['day']):02}"
    return _Row(
        aircraft=flight if fields["tailnum"] == "NA" else fields["tailnum"],
        name=f"{flight} {day} {fields['origin']}-{fields['dest']}",
        dest=fields["dest"],
        due_out=due_out,
        due_in=due_in if due_in >= due_out else due_in + 1440,
        out=out,
        landed=landed,
        late_out=late_out,
        late_in=late_in,
        diverted=out is not None and fields["air_time"] == "NA",
    )


def _after_midnight(clock: str) -> int:
    return int(clock) // 100 * 60 + int(clock) % 100


def _number(text: str) -> int | None:
    return None if text == "NA" else int(text)


def _moments(row: _Row) -> Iterator[tuple[str, int]]:
    """Return the events that the file has of one flight, and their minutes."""
    yield "scheduled", row.due_out - SCHEDULE_LEAD_MINUTES
    if row.out is None:
        yield "cancelled", row.due_out
        return
    if row.late_out is not None and row.late_out > 0:
        yield "delayed", row.due_out
    yield "departed", row.out
    if row.late_in is not None and row.late_in > 0:
        yield "overdue", row.due_in
    if row.diverted:
        yield "diverted", row.due_in
    if row.landed is not None:
        yield "arrived", row.landed


def write_histories(path: Path, histories: Mapping[bytes, bytes]) -> None:
    """Write histories into a file.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text(json.dumps({key.decode(): text.decode() for key, text in histories.items()}))


def read_histories(path: Path) -> dict[bytes, bytes]:
    """Read the histories that `write_histories` wrote.

    Raises:
        OSError: The file cannot be read.
    """
    return {key.encode(): text.encode() for key, text in json.loads(path.read_text()).items()}


def main() -> None:
    """Write the expected histories into a file, at the lowest priority, and print `done`."""
    parser = argparse.ArgumentParser(prog="python -m e2e.demo.rebuild", description=main.__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--limit", type=int, default=None, help="only this many events")
    arguments = parser.parse_args()
    os.nice(NICENESS)
    write_histories(arguments.path, expected(arguments.limit))
    print(json.dumps({"k": "done"}), flush=True)


if __name__ == "__main__":
    main()
