"""Judges a run: each aircraft's history, what the store noted, and the record of all attempts. This module is pure.

The store's entries have the events of each aircraft in the order in which they were worked on. So the histories that
are folded from them must equal those of the file, byte for byte. The checker of the client's history judges deliveries
(`seriatim.history`); this module judges the work.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from e2e.demo.rebuild import Rebuilder, differences, digest
from e2e.demo_orders.delivery_attempts import FAILED, DeliveryAttempt
from e2e.demo_orders.store import Entry

Kill = tuple[Sequence[str], float]
"""A process that was killed: the places of its consumers, and when, in seconds of the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Parked:
    """What happened to the aircraft that was parked. Times are in seconds of the monotonic clock.

    Attributes:
        key: The aircraft.
        attempts: How many attempts had failed.
        waiting: How many of its messages waited when it was released.
        parked_at: When the demo saw that it was parked.
        released_at: When the demo asked to release it.
        others: Other keys that were parked at that time, which should be none.
    """

    key: str
    attempts: int
    waiting: int
    parked_at: float
    released_at: float
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """What happened to the aircraft whose events were dead-lettered. Times are in seconds of the monotonic clock.

    Attributes:
        key: The aircraft.
        letters: The offsets of its messages in the dead-letter topic's list, in the order of the list.
        begun_at: When its events began to fail.
        replayed_at: When the replay was asked for.
        others: Dead letters of other keys, which should be none.
    """

    key: str
    letters: tuple[int, ...]
    begun_at: float
    replayed_at: float
    others: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the store and the record of attempts say.

    Attributes:
        taken: Events that the store took.
        repeats: Events that came again, and that the store knew.
        unflagged: Of these: neither flagged, nor with an attempt above 1.
        refused: Writes that the store refused because of their token.
        attempts: Calls of handlers.
        failed: Of these: those that failed.
        cut_off: Of these: those that a kill cut off.
        aircraft: How many aircraft there are.
        differences: How the histories differ from those of the file; empty if they are equal.
        digest: SHA-256 of the histories.
        take_overs_s: For each message whose work was cut off by a kill: seconds until it was worked on again.
        others_meanwhile: Messages of other aircraft that were finished while one was parked.
        problems: What should not have happened, as sentences.
    """

    taken: int
    repeats: int
    unflagged: int
    refused: int
    attempts: int
    failed: int
    cut_off: int
    aircraft: int
    differences: Sequence[str]
    digest: str
    take_overs_s: Sequence[float]
    others_meanwhile: int
    problems: Sequence[str]


def judge(
    entries: Iterable[Entry],
    attempts: Sequence[DeliveryAttempt],
    wanted: Mapping[bytes, bytes],
    *,
    kills: Sequence[Kill] = (),
    parked: Parked | None = None,
    dead: DeadLettered | None = None,
) -> Judgement:
    """Judge a run.

    Args:
        entries: What the store decided, in its order.
        attempts: All calls of handlers, in the order in which they began.
        wanted: The histories of the file.
        kills: Processes with consumers that were killed.
        parked: What happened to the parked aircraft; None: no aircraft was parked.
        dead: What happened to the dead-lettered aircraft; None: no message was dead-lettered.
    """
    rebuilder = Rebuilder()
    verdicts: Counter[str] = Counter()
    unflagged = 0
    for entry in entries:
        verdicts[entry.verdict] += 1
        if entry.verdict == "taken":
            rebuilder.apply(entry.key, entry.value)
        elif entry.verdict == "repeat" and entry.attempt == 1 and not entry.flagged:
            unflagged += 1
    histories = rebuilder.histories()
    outcomes = Counter(attempt.outcome for attempt in attempts)
    problems = []
    if unflagged:
        problems.append(f"{unflagged:,} messages came again without a flag")
    others = 0
    if parked is not None:
        others, found = _judge_parked(parked, attempts)
        problems += found
    if dead is not None:
        problems += _judge_dead(dead, attempts)
    return Judgement(
        taken=verdicts["taken"],
        repeats=verdicts["repeat"],
        unflagged=unflagged,
        refused=verdicts["refused"],
        attempts=len(attempts),
        failed=sum(outcomes[outcome] for outcome in FAILED),
        cut_off=outcomes["cut off"],
        aircraft=len(histories),
        differences=differences(histories, wanted),
        digest=digest(histories),
        take_overs_s=take_overs(attempts, kills),
        others_meanwhile=others,
        problems=problems,
    )


def take_overs(attempts: Sequence[DeliveryAttempt], kills: Sequence[Kill]) -> list[float]:
    """For each message whose work was cut off by a kill: seconds from the kill until it was worked on again."""
    begun: dict[int, list[float]] = defaultdict(list)
    for attempt in attempts:
        begun[attempt.number].append(attempt.begun_at)
    found = []
    for places, killed_at in kills:
        for attempt in attempts:
            is_cut = attempt.outcome == "cut off" and attempt.place in places
            if is_cut and killed_at - 5.0 < attempt.begun_at <= killed_at + 0.1:
                since = max(attempt.begun_at, killed_at)
                found += [at - killed_at for at in begun[attempt.number] if at > since][:1]
    return sorted(found)


def _judge_parked(parked: Parked, attempts: Sequence[DeliveryAttempt]) -> tuple[int, list[str]]:
    """Return how many messages of other aircraft were finished meanwhile, and what was wrong."""
    meanwhile = [
        attempt
        for attempt in attempts
        if attempt.outcome == "done" and parked.parked_at <= (attempt.ended_at or 0.0) <= parked.released_at
    ]
    own = sum(attempt.key == parked.key for attempt in meanwhile)
    problems = []
    if own:
        problems.append(f"{own} messages of {parked.key} were finished while it was parked")
    if len(meanwhile) == own:
        problems.append(f"no message of another aircraft was finished while {parked.key} was parked")
    if parked.others:
        problems.append(f"also parked, by chance: {', '.join(parked.others)}")
    return len(meanwhile) - own, problems


def _judge_dead(dead: DeadLettered, attempts: Sequence[DeliveryAttempt]) -> list[str]:
    given_up = {attempt.number for attempt in attempts if attempt.key == dead.key and attempt.outcome == "gave up"}
    problems = []
    if not dead.letters:
        problems.append(f"no message of {dead.key} was dead-lettered")
    if len(given_up) != len(dead.letters):
        problems.append(
            f"{len(given_up)} messages of {dead.key} were given up, and {len(dead.letters)} are dead letters"
        )
    if list(dead.letters) != sorted(dead.letters):
        problems.append(f"the dead letters of {dead.key} are not in their order")
    if dead.others:
        problems.append(f"{dead.others} messages of other aircraft were dead-lettered")
    return problems
