"""What was seen of a world, as a Mermaid sequence diagram: who said what to whom, and which faults struck.

Messages of applications are letters, in the order in which they were sent. Left out is what a reader needs not see to
follow: heartbeats, links that come up, questions for routes, control records of groups, and records that change nothing
but who may serve.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from seriatim_api.ids import split_offset
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.log import Batch
from seriatim_broker.core.values.segment import Segment, SegmentState

from ..judge import messages_of
from .world import ChainWritten, CursorWritten, Seen, Step, Words

COORDINATOR: Final = "coordinator"
_BROKER: Final = re.compile(r"g\d+-\d+")
_TOLD: Final = re.compile(r"application (sends|is told:) \[(.*?)\] ?(\w*)")
_GIVEN: Final = re.compile(r"is given (\d+) at (\S+?)( \(maybe again\))?\Z")
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"

Line = tuple[tuple[str, ...], str]
"""Who takes part (their participants), and the Mermaid line."""


class Drawing:
    """Makes the lines, one thing after another."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._letters: dict[int, str] = {}
        self._requests: dict[tuple[str, int], tuple[str, str]] = {}  # broker, request -> producer, letters
        self._producers: dict[bytes, str] = {}
        self._sending: dict[int, str] = {}  # message -> producer
        self._known: dict[type, Callable[[Any], str]] = {
            msg.FenceRequest: lambda m: f"fence segment {m.segment_no}",
            msg.FenceAnswer: self._fence_answer,
            msg.PrepareRequest: self._prepare,
            msg.PrepareAnswer: lambda m: f"will not: {m.refusal}" if m.refusal else f"prepared {m.segment_no}",
            msg.Replicate: lambda m: f"{self._batches(m.batches)} (commit {m.commit})" if m.batches else "",
            msg.ReplicateAck: lambda m: f"has all below {m.segment_no}:{m.durable} on its disk",
            msg.ReplicateRefused: lambda m: f"takes nothing of {m.segment_no}: {m.reason}",
            msg.QuiesceRequest: lambda m: f"come to rest in {m.segment_no}",
            msg.CopyRequest: lambda m: f"copy of {m.segment_no} from {m.from_index} on?",
            msg.CopyAnswer: lambda m: self._batches(m.batches) if m.batches else "",
            msg.StoreTail: lambda m: f"keep the tail of {m.tail.segment_no} {self._batches(m.tail.batches)}",
            msg.TableAnswer: lambda m: f"table before {m.segment_no + 1}",
        }

    # ---- words --------------------------------------------------------------------------------------

    def letter(self, message: int) -> str:
        """The name of a message."""
        known = self._letters.get(message)
        if known is None:
            at = len(self._letters)
            known = LETTERS[at % 26] + (str(at // 26) if at >= 26 else "")
            self._letters[message] = known
        return known

    def _messages(self, batch: Batch) -> str:
        return " ".join(map(self.letter, messages_of(batch)))

    def _batches(self, batches: Iterable[Batch]) -> str:
        return ", ".join(
            f"{self._messages(batch)} at {batch.header.segment}:{batch.header.base_index}" for batch in batches
        )

    def _fence_answer(self, answer: msg.FenceAnswer) -> str:
        if not answer.fenced:
            return f"knows nothing of {answer.segment_no}"
        if answer.length is None:
            return f"fenced {answer.segment_no}, cannot say how long it is"
        return f"fenced {answer.segment_no}, {'commit' if answer.unbroken else 'tail'} {answer.length}"

    def _prepare(self, request: msg.PrepareRequest) -> str:
        tail = f", keep {self._batches(request.tail.batches)}" if request.tail is not None else ""
        mark = ", table incomplete" if request.incomplete_table else ""
        return f"prepare segment {request.segment_no}{mark}{tail}"

    # ---- what was seen ------------------------------------------------------------------------------

    def take(self, seen: Seen) -> None:
        """Draw one thing, if it is worth a line."""
        what = seen.what
        if isinstance(what, Step):
            self._step(seen.who, what)
        elif isinstance(what, ChainWritten):
            if what.before is None:
                self.lines.clear()  # how a partition is made is no part of the story
            text = _change(what.before, what.after)
            if text:
                self._arrow(seen.who, COORDINATOR, text)
        elif isinstance(what, CursorWritten):
            self._arrow(seen.who, COORDINATOR, f"{what.consumer_group} goes on in segment {what.new.segment_no}")
        elif isinstance(what, Words):
            self._words(seen.who, what.text)

    def _step(self, who: str, step: Step) -> None:
        event = step.event
        if isinstance(event, ev.Received):
            name = self._known.get(type(event.message))
            text = name(event.message) if name is not None else ""
            if text:
                self._arrow(event.broker, who, text)
        elif isinstance(event, ev.Append):
            first = int.from_bytes(event.body[:8], "big")
            letters = " ".join(self.letter(first + at) for at in range(event.header.message_count))
            producer = self._producer(event.header.producer, first)
            self._requests[who, event.request] = (producer, letters)
            self._arrow(producer, who, f"{letters} (sequence {event.header.base_sequence})")
        for effect in step.effects:
            self._effect(who, effect)

    def _effect(self, who: str, effect: Any) -> None:
        if isinstance(effect, fx.AppendAccepted | fx.AppendRefused):
            producer, letters = self._requests.get((who, effect.request), ("", ""))
            if not producer:
                return
            if isinstance(effect, fx.AppendAccepted):
                no, index = split_offset(effect.offset)
                self._arrow(who, producer, f"ok: {letters} at {no}:{index}", dashed=True)
            else:
                self._arrow(who, producer, f"refused: {letters} ({effect.error.message})", dashed=True)

    def _producer(self, producer: bytes, message: int) -> str:
        known = self._producers.get(producer)
        if known is None:
            known = self._producers[producer] = self._sending.get(message, f"producer{len(self._producers) + 1}")
        return known

    def _words(self, who: str, text: str) -> None:
        told = _TOLD.match(text)
        given = _GIVEN.match(text)
        if who == "FAULT":
            brokers = tuple(dict.fromkeys(_BROKER.findall(text)))
            self._note(brokers, text)
        elif told is not None:
            ids = [int(word) for word in told.group(2).split(",")]
            letters = " ".join(map(self.letter, ids))
            if told.group(1) == "sends":
                self._sending.update(dict.fromkeys(ids, _client(who)))
            else:
                self._note((_client(who),), f"{letters} is {told.group(3)}")
        elif given is not None:
            again = " (maybe again)" if given.group(3) else ""
            self._note((_client(who),), f"is given {self.letter(int(given.group(1)))} at {given.group(2)}{again}")

    # ---- lines --------------------------------------------------------------------------------------

    def _arrow(self, source: str, target: str, text: str, *, dashed: bool = False) -> None:
        if source != target:
            self.lines.append(
                ((source, target), f"{_name(source)}{'-->>' if dashed else '->>'}{_name(target)}: {_clean(text)}")
            )

    def _note(self, who: Sequence[str], text: str) -> None:
        if who:
            self.lines.append((tuple(who), f"Note over {','.join(map(_name, _ends(who)))}: {_clean(text)}"))
        else:
            self.lines.append(((), _clean(text)))


def _ends(who: Sequence[str]) -> list[str]:
    """A note is over one participant, or reaches from one to another."""
    ordered = sorted(who)
    return ordered[:1] if len(ordered) == 1 else [ordered[0], ordered[-1]]


def _client(name: str) -> str:
    """`early.0/1` is a consumer of group early; `p1.0` a producer."""
    return name.partition("/")[0]


def _name(who: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]", "_", who)


def _clean(text: str) -> str:
    """Nothing that Mermaid would take for its own."""
    return re.sub(r"\s+", " ", text.replace(";", ",").replace("#", " ")).strip()


def _change(before: Chain | None, after: Chain) -> str:
    """What a record says that the one before did not; empty if only who may serve changed."""
    if before is None:
        return f"segment 1 is open on {after.open_segment.broker_group}"
    known = {segment.no: segment for segment in before.segments}
    said: list[str] = []
    for segment in after.segments:
        old = known.get(segment.no)
        if old is None:
            said.append(f"{segment.no} is open on {segment.broker_group}")
        elif old.state is not segment.state:
            said.append(_end(segment))
        elif set(segment.members) - set(old.members):
            said.append(f"{segment.no} has another copy")
    return ", ".join(said)


def _end(segment: Segment) -> str:
    if segment.state is SegmentState.SEALED:
        return f"{segment.no} is sealed at {segment.sealed_len}"
    return f"{segment.no} is {segment.state.value}"


_LISTED: Final = re.compile(r"\[([\d, ]+)\]")
_NAMED: Final = re.compile(r"\b(given|message|behind) (\d+)\b")
_LEADING: Final = re.compile(r"^(\d+)(?= (?:was|failed|stands))")


def _in_letters(text: str, letter: Callable[[int], str]) -> str:
    """A finding of the judge with the names that messages have in the diagram."""
    text = _LISTED.sub(lambda found: " ".join(letter(int(number)) for number in found.group(1).split(",")), text)
    text = _NAMED.sub(lambda found: f"{found.group(1)} {letter(int(found.group(2)))}", text)
    return _LEADING.sub(lambda found: letter(int(found.group(1))), text)


def diagram(seen: Sequence[Seen], ending: str) -> list[str]:
    """A Mermaid sequence diagram of what was seen, with how it ended as its last note."""
    drawing = Drawing()
    for one in seen:
        drawing.take(one)
    taking_part = {who for parts, _ in drawing.lines for who in parts}
    clients = sorted(who for who in taking_part if who != COORDINATOR and not _BROKER.fullmatch(who))
    brokers = sorted(who for who in taking_part if _BROKER.fullmatch(who))
    producers = [who for who in clients if who.startswith("p")]
    readers = [who for who in clients if not who.startswith("p")]
    order = [*producers, *brokers, *([COORDINATOR] if COORDINATOR in taking_part else []), *readers]
    lines = ["sequenceDiagram"]
    lines += [f"    participant {_name(who)} as {who}" for who in order]
    ends = f"{_name(order[0])},{_name(order[-1])}"
    lines += [f"    {text}" if parts else f"    Note over {ends}: {text}" for parts, text in drawing.lines]
    lines.append(f"    Note over {ends}: {_clean(_in_letters(ending, drawing.letter))}")
    return lines
