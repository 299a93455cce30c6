"""Histories described in words, and tables of them with what must be found in each.

A story is a row of steps, as `keyed 3; done 1 9; came 0 10`. A step is a method of `Story` and its arguments. `T7` is a
token of the second server of a partition, `2T7` one of the third; `again` marks a message `maybe_repeated`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from seriatim.history import KINDS, MemoryHistory, Report, check_events, render

TOPIC, GROUP = "orders", "g"
AT: dict[str, Any] = {"topic": TOPIC, "partition": 0}
OF: dict[str, Any] = {"group": GROUP, **AT}
FLAGS = {"again": "maybe_repeated", "once": "at_most_once", "answered": "done"}


def value_of(word: str) -> Any:
    """A number, a token, nothing or a text."""
    if token := re.fullmatch(r"(\d*)T(\d*)", word):
        return int(token[1] or 1) * (1 << 40) + int(token[2] or 0)
    return int(word) if word.isdigit() else None if word == "none" else word


def key_of(number: int) -> str:
    return "a" if number % 2 == 0 else "b"


def bytes_of(key: str | None) -> bytes | None:
    return None if key is None else key.encode()


class Story(MemoryHistory):
    """A history described step by step; each step takes a second. Message n is at `1:n` unless a step says where it is.

    In a group by key, messages with even numbers have the key a, and odd ones the key b.
    """

    def __init__(self, steps: str = "") -> None:
        self.second = 0.0
        super().__init__("test", self._tick)
        self.tell(steps)

    def _tick(self) -> float:
        self.second += 1.0
        return self.second

    def tell(self, steps: str) -> None:
        for step in filter(None, re.split(r"\s*[;\n]\s*", steps.strip())):
            verb, *words = step.split()
            named = dict(word.split("=") for word in words if "=" in word)
            more = {name: value_of(word) for name, word in named.items()}
            more |= {FLAGS[word]: True for word in words if word in FLAGS}
            plain = [value_of(word) for word in words if "=" not in word and word not in FLAGS]
            getattr(self, verb)(*plain, **more)

    # ---- sent

    def sent(self, number: int, sequence: int | None = None, key: str | None = None, **more: Any) -> None:
        more = {"producer": "p", **AT, **more}
        self.send(number, sequence=number if sequence is None else sequence, key=bytes_of(key), **more)

    def ok(self, number: int, at: str = "") -> None:
        self.outcome(number, "ok", offset=at or f"1:{number}")

    def cancels(self, number: int, answer: Any = None) -> None:
        self.cancel(offset=f"1:{number}", answer=answer, **AT)

    def each(self, count: int) -> None:
        """Messages, each sent after the acknowledgement of the one before."""
        for number in range(count):
            self.sent(number)
            self.ok(number)

    def together(self, count: int, *, keys: bool = False) -> None:
        """Messages, all sent before the first acknowledgement."""
        for number in range(count):
            self.sent(number, key=key_of(number) if keys else None)
        for number in range(count):
            self.ok(number)

    def keyed(self, count: int) -> None:
        self.together(count, keys=True)

    # ---- delivered in order

    def came(self, number: int, at: str = "", **more: Any) -> None:
        self.deliver(number, **{"consumer": "c1", "offset": at or f"1:{number}", **OF, **more})

    def reads(self, *numbers: int, group: str = GROUP) -> None:
        for number in numbers:
            self.came(number, group=group)

    def acks(self, number: int) -> None:
        """All messages up to this one."""
        self.ack(offset=f"1:{number}", **OF)

    # ---- delivered under tokens

    def given(self, number: int, token: int, consumer: str = "c1", at: str = "", **more: Any) -> None:
        key = bytes_of(more.pop("key", key_of(number)))
        more = {"group_epoch": more.pop("epoch", 1), **more}
        self.deliver(number, consumer=consumer, offset=at or f"1:{number}", token=token, key=key, **OF, **more)

    def acked(self, number: int, token: int, consumer: str = "c1", at: str = "") -> None:
        self.ack_single(consumer=consumer, offsets=[at or f"1:{number}"], tokens=[token], **OF)

    def done(self, number: int, token: int, consumer: str = "c1", at: str = "", **more: Any) -> None:
        """Given and acknowledged."""
        self.given(number, token, consumer, at, **more)
        self.acked(number, token, consumer, at)

    def confirmed(self, number: int, token: int) -> None:
        self.confirm(consumer="c1", offsets=[f"1:{number}"], tokens=[token], group_epoch=1, **OF)

    def failed(self, number: int, token: int) -> None:
        self.nack(consumer="c1", offset=f"1:{number}", token=token, **OF)

    def fails(self, number: int, token: int, **more: Any) -> None:
        """Given and failed."""
        self.given(number, token, **more)
        self.failed(number, token)

    def ended(self, token: int) -> None:
        self.void(consumer="c1", tokens=[token], **OF)

    def killed(self) -> None:
        """Another process recorded, and was killed."""
        self.events.insert(0, {"k": "history", "version": 1, "process": "killed", "clock": "monotonic"})

    # ---- set aside, gone, and done by administrators

    def park(self, key: str | None, first: str, messages: int, state: Any = "parked") -> None:
        self.parked(key=bytes_of(key), first=first, messages=messages, state=state, **OF)

    def dead(self, number: int, index: int = 0, offset: str = "", **more: Any) -> None:
        """A dead letter, stored at this index of the dead-letter topic."""
        self.dead_letter(number, stored_at=f"dead/0 1:{index}", offset=offset or f"1:{number}", **OF, **more)

    def says(self, act: Any, offset: str, key: str | None = None, *, done: bool = False) -> None:
        """An administrator does this, and the answer may come."""
        self.person(act, offset=offset, key=bytes_of(key), done=done, **OF)

    def asked(self, act: Any, offset: str, key: str | None = None) -> None:
        """An administrator does this, and the answer comes."""
        self.says(act, offset, key)
        self.says(act, offset, key, done=True)

    def move(self, way: Any, offset: str | None = None, end: str | None = None, *, done: bool = False) -> None:
        self.person("move", way=way, offset=offset, end=end, done=done, **OF)

    def moved(self, way: Any, offset: str, end: str | None = None) -> None:
        self.move(way, offset, end)
        self.move(way, offset, end, done=True)

    def gone(self, first: str, end: str, group: str | None = GROUP) -> None:
        self.gap(first=first, end=end, why="lost", group=group, **AT)

    def skips(self, first: str, end: str, group: str = GROUP) -> None:
        """The server skips repeats."""
        self.skip(first=first, end=end, why="a repeat", group=group, **AT)

    def ends(self, group: str | None = None, topic: str | None = None) -> None:
        self.end(group, topic=topic)

    def stays(self, group: str | None = None, state: str = "") -> None:
        """The end of a group that has not drained."""
        self.end(group, drained=False, waiting=f"segment 1 is {state}")


@dataclass(frozen=True)
class Row:
    """A story and what must be found in it."""

    name: str
    found: dict[str, int]
    wanted: tuple[tuple[str, str], ...]
    steps: str

    def judged(self, end: str) -> Report:
        story = Story(self.steps)
        if not re.search(r"\b(ends|stays)\b", self.steps):
            story.tell(end)
        return check_events(story.events)

    def check(self, end: str = "ends") -> None:
        """Judge the story; if none of its steps is an end, `end` is the last one."""
        report = self.judged(end)
        text = render(report)
        assert {kind: count for kind, count in report.counts.items() if kind in KINDS and count} == self.found, text
        assert Counter(finding.kind for finding in report.findings) == self.found
        assert report.ok == (not self.found)
        assert all(kind in text for kind in self.found)
        assert all(finding.events or finding.kind == "stuck" for finding in report.findings)
        assert len(report.unjudged) == int(dict(self.wanted).get("unjudged", 0)), report.unjudged
        for name, value in self.wanted:
            if name == "unjudged":
                continue
            if name == "says":
                assert value in " ".join(text.split())
            elif name == "unknown_share":
                assert report.unknown_share == float(value)
            elif name in report.counts and value.isdigit():
                assert report.counts[name] == int(value), text
            else:
                first = next(iter(self.found))
                finding = next(finding for finding in report.findings if finding.kind == first)
                assert value == str(self.told_of(finding, name)), text

    @staticmethod
    def told_of(finding: Any, name: str) -> object:
        """A field of the finding, or that field of each of its events, for example `kinds`."""
        if name.startswith("fault."):
            return finding.fault.event[name.removeprefix("fault.")]
        if hasattr(finding, name):
            return getattr(finding, name)
        if name == "lines":
            return " ".join(str(evidence.line) for evidence in finding.events)
        return " ".join(str(evidence.event.get(name.removesuffix("s"))) for evidence in finding.events)


def rows(table: str) -> list[Row]:
    """Read a table. A row is `name: what is found`, its steps on indented lines, and `and …`: what more must be so.

    What is found is `ok`, or kinds and counts as `repeated 2 misplaced`. What more must be so is a count of the report
    (`redelivered 2`), a field of the finding (`message 1`), that of its events in turn (`kinds send outcome end`),
    words that the report says, or how many groups are not judged.
    """
    found = []
    for name, kinds, lines in re.findall(r"^(\S.*): (.*)\n((?: .*\n)+)", table, re.MULTILINE):
        steps, _, more = lines.partition(" and ")
        counted = re.findall(r"([a-z_]+)(?: (\d+))?", kinds.removeprefix("ok"))
        wanted = (want.strip().partition(" ") for want in re.split(r"[;\n]", more) if want.strip())
        pairs = tuple((field, value) for field, _, value in wanted)
        found.append(Row(name, {kind: int(count or 1) for kind, count in counted}, pairs, steps))
    return found
