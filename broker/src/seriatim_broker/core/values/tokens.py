"""Tokens of grants in which order is by key: a term and a counter, in one number below 2^63.

    term below 2^22        term << 40 | counter (40 bits)
    term below 2^30        1 << 62 | term << 32 | counter (32 bits)

So each token of a term is higher than all tokens of lower terms, and applications may keep it as a signed number. The
term grows by one with each move of the cursor, and for a change of servers by as much as the chain epoch has grown. If
the chain record is written every 10 s, as with the shortest retention, the first form lasts for a year, and both last
for 340 years.

The counter is that of a member run, from the beginning of the term on. Before it is used up, the server takes the next
term (`consumers.groups.cursor_notes`).
"""

from __future__ import annotations

from typing import Final

TERM_MAX: Final = (1 << 30) - 1
"""The highest term. Above it, a consumer group is refused."""

_WIDE_FROM: Final = 1 << 22
_WIDE: Final = 1 << 62


def first_of(term: int) -> int:
    """The token below all that are given in a term: the counter is 0.

    Rule `tokens-fit` (J3): a token fits into the 63 bits that messages and applications keep. Without it:
      1. A topic keeps messages for a minute, so its chain record is written every 10 s. A consumer group is deleted and
         made again every day.
      2. After 61 days the term has more than 24 bits, and the token more than 64.
      3. The broker ends in the step that puts the token into a message, and so does the next server.
    """
    assert 0 <= term <= TERM_MAX, term
    return term << 40 if term < _WIDE_FROM else _WIDE | term << 32


def count_max(term: int) -> int:
    """How many tokens a term has."""
    return (1 << (40 if term < _WIDE_FROM else 32)) - 1


def term_of(token: int) -> int:
    """The term of a token."""
    return token >> 40 if token < _WIDE else (token ^ _WIDE) >> 32
