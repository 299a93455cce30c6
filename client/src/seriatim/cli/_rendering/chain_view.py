"""Draws the chain of a partition for a terminal: segments as cards in a row, or one line for each partition.

Pure: it turns plain data into lines of text with styles, so that tests can compare recorded text. Words or shapes say
everything that colours say. A card is 18 columns wide, with an arrow of 2. So 4 cards fit into a window of 80 columns,
and 8 into 160.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.text import Text

from seriatim.cli._rendering.output import older_segment_count

if TYPE_CHECKING:
    from seriatim import Chain, Cluster, Segment

CARD_WIDTH: Final = 18
ARROW_WIDTH: Final = 2
ROWS_DEFAULT: Final = 2
"""Rows of cards that are drawn by default. Users mostly look for the newest segments."""

_INNER: Final = CARD_WIDTH - 4
_STYLES: Final = {"OPEN": "bold green", "SEALED": "blue", "UNSETTLED": "bold yellow", "LOST": "bold red"}
_BORDERS: Final = {  # corners clockwise from the top left, then horizontal and vertical
    "OPEN": "┏┓┛┗━┃",
    "SEALED": "╭╮╯╰─│",
    "UNSETTLED": "╭╮╯╰┄┆",
    "LOST": "╭╮╯╰╌╎",
}
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def draw_chain(chain: Chain, *, width: int, row_count_max: int | None = ROWS_DEFAULT) -> RenderableType:
    """Draw the chain as cards, in a window of `width` columns: the newest `row_count_max` rows (None: all)."""
    across = max(1, width // (CARD_WIDTH + ARROW_WIDTH))
    shown = chain.segments
    if row_count_max is not None:
        shown = shown[max(0, len(shown) - across * row_count_max) :]
    hidden = chain.segments[: len(chain.segments) - len(shown)]
    longest = max((segment.sealed_len or 0 for segment in shown), default=0)
    rows: list[RenderableType] = [_title(chain), _send_chain(chain)]
    if hidden or older_segment_count(chain):
        rows.append(_older(hidden, older_segment_count(chain)))
    for begin in range(0, len(shown), across):
        part = shown[begin : begin + across]
        is_last = begin + across >= len(shown)
        rows.append(_row_of_cards(part, longest, goes_on=not is_last))
    return Group(*rows)


def draw_ribbons(chains: Sequence[Chain], *, width: int) -> RenderableType:
    """Draw many partitions, each in one line: the newest segments that fit, the oldest of them on the left."""
    rows: list[RenderableType] = [Text.assemble(("partition  epoch  accepts  chain", "bold"))]
    for chain in chains:
        label = Text(f"{chain.partition:>9}  {chain.epoch:>5}  {_cut(_accepts(chain), 7):<7}  ")
        rows.append(label + _ribbon(chain, width - len(label)))
    rows.append(_legend(chains))
    return Group(*rows)


def _title(chain: Chain) -> Text:
    known = [segment.sealed_len for segment in chain.segments if segment.state != "OPEN"]
    sealed = sum(length for length in known if length is not None)
    count = len(chain.segments) + older_segment_count(chain)
    text = Text.assemble(
        (f"{chain.topic}/{chain.partition}", "bold"),
        f"  epoch {chain.epoch}  {count} segment{'s' * (count != 1)}",
    )
    if sealed:
        text.append(f"  {sealed:,} messages sealed")
    for state in ("UNSETTLED", "LOST"):
        number = sum(segment.state == state for segment in chain.segments)
        if number:
            text.append(f"  {number} {state}", style=_STYLES[state])
    return text


def _send_chain(chain: Chain) -> Text:
    text = Text("accepts: ")
    for place, group in enumerate(chain.send_chain):
        if place:
            text.append(" ──▶ ", style="dim")
        text.append(group, style=_STYLES["OPEN"] if place == 0 else "")
    if len(chain.send_chain) > 1:
        text.append("  (next in line, left to right)", style="dim")
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _older(hidden: Sequence[Segment], further: int) -> Text:
    count = len(hidden) + further
    messages = sum(segment.sealed_len or 0 for segment in hidden)
    more = f", {messages:,} messages{' and more' * bool(further)}" if messages else ""
    return Text(f"… {count} older segment{'s' * (count != 1)}{more}", style="dim")


def _row_of_cards(segments: Sequence[Segment], longest: int, *, goes_on: bool) -> Text:
    note_count = max(len(_notes(segment)) for segment in segments)
    cards = [_card(segment, longest, note_count) for segment in segments]
    text = Text(no_wrap=True, overflow="crop")
    for number, lines in enumerate(zip_longest(*cards)):
        if number:
            text.append("\n")
        for place, line in enumerate(lines):
            text.append_text(line)
            if place + 1 < len(cards) or goes_on:
                text.append("─▶" if number == _ARROW_LINE else "  ", style="dim")
    return text


_ARROW_LINE: Final = 2


def _card(segment: Segment, longest: int, note_count: int) -> list[Text]:
    style = _STYLES[segment.state]
    a, b, c, d, across, down = tuple(_BORDERS[segment.state])
    title = _cut(f" {segment.no} · {segment.group} ", CARD_WIDTH - 4)
    notes = _notes(segment)
    body = [
        _pair(segment.state, _length(segment), style),
        Text(_bar(segment, longest), style=style),
        Text(_cut(_members(segment), _INNER)),
        Text(_cut(f"serves {_short(segment.server, segment.group) or '-'}", _INNER)),
        *(Text(_cut(note, _INNER), style="yellow") for note in notes),
        *(Text() for _ in range(note_count - len(notes))),
    ]
    lines = [Text(f"{a}{across}{title.ljust(CARD_WIDTH - 3, across)}{b}", style=style)]
    for line in body:
        line.pad_right(_INNER - len(line))
        lines.append(Text.assemble((f"{down} ", style), line, (f" {down}", style)))
    lines.append(Text(f"{d}{across * (CARD_WIDTH - 2)}{c}", style=style))
    return lines


def _pair(left: str, right: str, style: str) -> Text:
    if len(left) + 1 + len(right) > _INNER:
        left = _cut(left, max(4, _INNER - 1 - len(right)))
    return Text.assemble((left, style), " " * (_INNER - len(left) - len(right)), right)


def _members(segment: Segment) -> str:
    """The members' names, with a mark for the master.

    If they are too long, the broker group's name, which is in the card's title too, is left out of them.
    """
    if not segment.members:
        return "-"
    whole = "*" + " ".join(segment.members)
    if len(whole) <= _INNER:
        return whole
    return "*" + " ".join(member.removeprefix(f"{segment.group}-") for member in segment.members)


def _notes(segment: Segment) -> list[str]:
    notes = []
    if segment.tail_from is not None:
        notes.append(f"tail {compact(segment.tail_from)}+")
        notes.append(" ".join(["at", *segment.tail_copies]))
    if segment.incomplete_table:
        notes.append("table incompl.")
    if segment.start:
        notes.append("dropped" if segment.start == segment.sealed_len else f"from {compact(segment.start)}")
    return notes


def _short(broker: str, group: str) -> str:
    return broker if len(broker) <= _INNER - len("serves ") else broker.removeprefix(f"{group}-")


def _length(segment: Segment) -> str:
    if segment.state == "OPEN" and segment.sealed_len is None:
        return "growing"
    return "?" if segment.sealed_len is None else compact(segment.sealed_len, digits=_INNER - 1 - len(segment.state))


def _bar(segment: Segment, longest: int) -> str:
    if segment.state == "UNSETTLED":
        return "? " * (_INNER // 2)
    if segment.state == "LOST":
        return "x " * (_INNER // 2)
    if segment.state == "OPEN" and segment.sealed_len is None:
        return "░" * (_INNER - 2) + "▶"
    eighths = 0 if not longest else -(-(segment.sealed_len or 0) * (_INNER - 1) * 8 // longest)
    full, rest = divmod(eighths, 8)
    bar = ("█" * full + _EIGHTHS[rest]).rstrip()
    return f"{bar}▶" if segment.state == "OPEN" else bar


def compact(number: int, *, digits: int = 7) -> str:
    """A count in about `digits` columns at most: with separators if they fit, else in thousands, millions, billions."""
    exact = f"{number:,}"
    if len(exact) <= digits:
        return exact
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            value = number / unit
            return f"{value:.1f}{name}" if value < 100 and digits >= 5 else f"{value:.0f}{name}"
    return str(number)


def _accepts(chain: Chain) -> str:
    return chain.segments[-1].group if chain.segments else "-"


_MARKS: Final = {"OPEN": "▶", "SEALED": "", "UNSETTLED": "?", "LOST": "x"}


def _ribbon(chain: Chain, width: int) -> Text:
    """As many of the newest segments as fit into `width` columns."""
    pieces: list[Text] = []
    used = 0
    for segment in reversed(chain.segments):
        length = "" if segment.sealed_len is None else f" {compact(segment.sealed_len, digits=5)}"
        piece = Text(f"{segment.no}:{segment.group}{length}{_MARKS[segment.state]}", style=_STYLES[segment.state])
        if used + len(piece) + 3 > width - 2:
            break
        used += len(piece) + 3
        pieces.append(piece)
    text = Text("… " if len(pieces) < len(chain.segments) or older_segment_count(chain) else "", style="dim")
    for place, piece in enumerate(reversed(pieces)):
        text.append("" if place == 0 else " ─ ", style="dim")
        text.append_text(piece)
    text.no_wrap, text.overflow = True, "crop"
    return text


def _legend(chains: Iterable[Chain]) -> Text:
    states = {segment.state for chain in chains for segment in chain.segments}
    words = ["segment:group messages"]
    words += [f"{_MARKS[state]} {state.lower()}" for state in ("OPEN", "UNSETTLED", "LOST") if state in states]
    return Text("  ".join(words), style="dim")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def who_waits(chains: Sequence[Chain], cluster: Cluster) -> dict[int, str]:
    """A line for each partition whose open segment has members that do not answer.

    If one of them answers, another broker group takes over soon. If none does, the partition waits: its last messages
    are only with them, and they may still run.
    """
    silent = {broker.name for broker in cluster.brokers if not broker.live}
    lines: dict[int, str] = {}
    for chain in chains:
        if not chain.segments or chain.segments[-1].state != "OPEN":
            continue
        last = chain.segments[-1]
        missing = [member for member in last.members if member in silent]
        if missing and len(missing) == len(last.members):
            names = " and ".join(missing)
            lines[chain.partition] = f"partition {chain.partition} waits for {names}: no member of {last.group} answers"
        elif missing:
            lines[chain.partition] = f"partition {chain.partition}: {' and '.join(missing)} does not answer"
    return lines
