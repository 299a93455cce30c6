"""The store that the consumers write to: a SQLite file that all their processes share.

It shows how a store keeps order when consumers are killed, frozen and replaced. For each aircraft it has the highest
*token* (`message.grant`) and the highest offset that it took:

1. A token below the highest one is refused (`OvertakenError`). Tokens of a key grow with each grant. So the one that
   writes was overtaken: it was frozen or cut off, and another consumer has the key now.
2. An offset up to the highest one is a repeat. It is noted, and changes nothing.
3. Everything else is taken, in the same transaction that notes token and offset.

So each event of an aircraft is in its story once, in the order in which it was worked on, however often it came. The
story is what the demo judges at its end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

Verdict = Literal["taken", "repeat", "refused"]

BUSY_S: Final = 20.0
"""How long a process waits until the others have written."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS aircraft (key BLOB PRIMARY KEY, token INTEGER NOT NULL, offset INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    place INTEGER PRIMARY KEY, key BLOB NOT NULL, offset INTEGER NOT NULL, token INTEGER NOT NULL,
    attempt INTEGER NOT NULL, flagged INTEGER NOT NULL, consumer TEXT NOT NULL, verdict TEXT NOT NULL,
    value BLOB NOT NULL
);
"""


class OvertakenError(Exception):
    """A newer token of the same key has written before: another consumer has the key now."""


class Entry(NamedTuple):
    """One write that was tried, in the order in which the store decided.

    Attributes:
        key: The aircraft.
        offset: The message's offset.
        token: The token of the consumer's grant.
        attempt: The delivery attempt.
        flagged: Whether the message was flagged `maybe_repeated`.
        consumer: The consumer that wrote.
        verdict: What the store decided.
        value: The event.
    """

    key: bytes
    offset: int
    token: int
    attempt: int
    flagged: bool
    consumer: str
    verdict: Verdict
    value: bytes


class Store:
    """The store, as one process uses it. Only one thread may use it.

    Args:
        path: The file.
        fences: False: do not compare tokens and offsets (only planted faults ask for it).

    Raises:
        sqlite3.Error: The file cannot be opened. Later calls raise it if it cannot be written.
    """

    def __init__(self, path: Path, *, fences: bool = True) -> None:
        self._fences = fences
        self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")  # processes are killed here, and no machine
        self._db.executescript(_SCHEMA)

    def write(
        self, key: bytes, value: bytes, *, offset: int, token: int, attempt: int, flagged: bool, consumer: str
    ) -> Verdict:
        """Take an event into the story of its aircraft, unless it is there already. It blocks for a moment.

        Returns:
            `taken` or `repeat`.

        Raises:
            OvertakenError: The token is too old. The write is noted as refused.
        """
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            known = db.execute("SELECT token, offset FROM aircraft WHERE key = ?", (key,)).fetchone()
            verdict = self._decide(known, token, offset)
            if verdict != "refused":
                highest = max(offset, known[1]) if known else offset
                db.execute("INSERT OR REPLACE INTO aircraft VALUES (?, ?, ?)", (key, token, highest))
            entry = Entry(key, offset, token, attempt, flagged, consumer, verdict, value)
            db.execute("INSERT INTO entries VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)", entry)
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
        if verdict == "refused":
            raise OvertakenError(f"{consumer} has token {token:#x} for {key!r}, and a newer one has written")
        return verdict

    def has(self, key: bytes, offset: int) -> bool:
        """Whether the message at that offset is in the story of its aircraft."""
        known = self._db.execute("SELECT offset FROM aircraft WHERE key = ?", (key,)).fetchone()
        return known is not None and offset <= known[0]

    def _decide(self, known: tuple[int, int] | None, token: int, offset: int) -> Verdict:
        if known is None or not self._fences:
            return "taken"
        if token < known[0]:
            return "refused"
        return "repeat" if offset <= known[1] else "taken"

    def entries(self) -> Iterator[Entry]:
        """All writes, in the order in which the store decided."""
        return (Entry(*row) for _place, *row in self._db.execute("SELECT * FROM entries ORDER BY place"))

    def taken(self) -> dict[str, int]:
        """By consumer: how many of its writes were taken."""
        rows = self._db.execute("SELECT consumer, count(*) FROM entries WHERE verdict = 'taken' GROUP BY consumer")
        return {str(consumer): int(count) for consumer, count in rows}

    def close(self) -> None:
        """Close the file."""
        self._db.close()
