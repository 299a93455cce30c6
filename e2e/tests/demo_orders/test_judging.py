"""The store fences by tokens and offsets, and the judge finds what went wrong, from made-up runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from seriatim import Message

from e2e.demo.rebuild import Rebuilder
from e2e.demo_orders.delivery_attempts import DeliveryAttempt, DeliveryAttemptWriter, Outcome, read_attempts
from e2e.demo_orders.judging import DeadLettered, Judgement, Parked, judge, take_overs
from e2e.demo_orders.picture import Story
from e2e.demo_orders.store import Entry, OvertakenError, Store, Verdict


def event(number: int) -> bytes:
    """One event of a flight, in the form of the demo."""
    fields = {
        "event": "scheduled", "flight": f"UA{number % 3}", "day": "2013-01-01", "from": "EWR", "to": "IAH",
        "due": "0515", "late": None,
    }  # fmt: skip
    return b'{"n":%7d,%s' % (number, json.dumps(fields)[1:].encode())


def histories(*stories: tuple[bytes, Sequence[int]]) -> dict[bytes, bytes]:
    rebuilder = Rebuilder()
    for key, numbers in stories:
        rebuilder.apply_all([key] * len(numbers), [event(number) for number in numbers])
    return rebuilder.histories()


def entry(number: int, verdict: Verdict = "taken", *, attempt: int = 1, flagged: bool = False) -> Entry:
    return Entry(b"N1", number, 5, attempt, flagged, "c01", verdict, event(number))


def attempt(
    number: int, begun_at: float, outcome: Outcome = "done", *, key: str = "N1", token: int = 5, consumer: str = "c01"
) -> DeliveryAttempt:
    ended_at = None if outcome == "cut off" else begun_at + 0.01
    return DeliveryAttempt(key, number, 1, False, token, consumer, begun_at, ended_at, outcome)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "store.sqlite")) as opened:
        yield opened


def write(store: Store, offset: int, token: int, key: bytes = b"N1") -> Verdict:
    return store.write(key, event(offset), offset=offset, token=token, attempt=1, flagged=False, consumer="c01")


def test_the_store_takes_each_event_once(store: Store) -> None:
    assert write(store, 1, 5) == "taken"
    assert write(store, 1, 6) == "repeat", "another consumer has the key, and the same message"
    assert write(store, 2, 6) == "taken"
    assert write(store, 1, 5, b"N2") == "taken", "tokens and offsets count for each key"
    assert [(one.key, one.offset, one.verdict) for one in store.entries()] == [
        (b"N1", 1, "taken"),
        (b"N1", 1, "repeat"),
        (b"N1", 2, "taken"),
        (b"N2", 1, "taken"),
    ]
    assert store.taken() == {"c01": 3}


def test_the_store_says_what_it_has(store: Store) -> None:
    write(store, 5, 5)
    assert store.has(b"N1", 5)
    assert store.has(b"N1", 4)
    assert not store.has(b"N1", 6)
    assert not store.has(b"N2", 5)


def test_the_store_refuses_a_consumer_that_was_overtaken(store: Store) -> None:
    write(store, 1, 5)
    write(store, 2, 7)
    with pytest.raises(OvertakenError, match="newer"):
        write(store, 3, 6)
    assert write(store, 3, 7) == "taken"
    assert [one.verdict for one in store.entries()] == ["taken", "taken", "refused", "taken"]
    assert store.taken() == {"c01": 3}


def test_a_repeat_under_a_newer_token_shuts_out_the_older_one(store: Store) -> None:
    write(store, 1, 5)
    write(store, 1, 7)
    with pytest.raises(OvertakenError):
        write(store, 2, 6)


def test_two_processes_share_the_store(store: Store, tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store.sqlite")) as other:
        write(store, 1, 5)
        assert write(other, 1, 6) == "repeat"
        with pytest.raises(OvertakenError):
            write(store, 2, 5)


def test_a_store_that_does_not_fence_takes_everything(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store.sqlite", fences=False)) as store:
        assert [write(store, 1, 5), write(store, 1, 4)] == ["taken", "taken"]


def judged(entries: Sequence[Entry], attempts: Sequence[DeliveryAttempt] = ()) -> Judgement:
    return judge(entries, attempts, histories((b"N1", [1, 2, 3])))


def test_a_good_run() -> None:
    entries = [entry(1), entry(1, "repeat", attempt=2), entry(2), entry(2, "repeat", flagged=True), entry(3)]
    found = judged(entries, [attempt(1, 1.0), attempt(2, 2.0, "raised"), attempt(2, 3.0), attempt(3, 4.0, "cut off")])
    assert list(found.problems) == []
    assert list(found.differences) == []
    assert (found.taken, found.repeats, found.unflagged, found.refused) == (3, 2, 0, 0)
    assert (found.attempts, found.failed, found.cut_off, found.aircraft) == (4, 1, 1, 1)


@pytest.mark.parametrize(
    "numbers", [[1, 3, 2], [1, 2], [1, 2, 2, 3], [2, 1, 3]], ids=["swapped", "lost", "twice", "swapped at first"]
)
def test_work_that_is_out_of_order_changes_the_history(numbers: list[int]) -> None:
    assert judged([entry(number) for number in numbers]).differences


def test_a_repeat_without_a_flag_is_found() -> None:
    found = judged([entry(1), entry(1, "repeat"), entry(2), entry(3)])
    assert found.unflagged == 1
    assert "1 messages came again without a flag" in found.problems


PARKED = Parked("N1", attempts=5, waiting=3, parked_at=10.0, released_at=20.0)


def test_other_aircraft_go_on_while_one_is_parked() -> None:
    attempts = [attempt(1, 9.0, "raised"), attempt(7, 12.0, key="N2"), attempt(8, 13.0, key="N2"), attempt(1, 21.0)]
    found = judge([], attempts, {}, parked=PARKED)
    assert found.others_meanwhile == 2
    assert list(found.problems) == []


@pytest.mark.parametrize(
    ("attempts", "parked", "words"),
    [
        ([attempt(1, 12.0), attempt(7, 12.0, key="N2")], PARKED, "while it was parked"),
        ([attempt(1, 21.0)], PARKED, "no message of another aircraft"),
        ([attempt(7, 12.0, key="N2")], replace(PARKED, others=("N3",)), "by chance: N3"),
    ],
)
def test_what_must_not_happen_while_an_aircraft_is_parked(
    attempts: list[DeliveryAttempt], parked: Parked, words: str
) -> None:
    assert any(words in problem for problem in judge([], attempts, {}, parked=parked).problems)


DEAD = DeadLettered("N1", letters=(1, 2), begun_at=10.0, replayed_at=20.0)
GAVE_UP = [attempt(1, 11.0, "gave up"), attempt(2, 12.0, "gave up")]


def test_what_is_given_up_is_a_dead_letter() -> None:
    assert list(judge([], GAVE_UP, {}, dead=DEAD).problems) == []


@pytest.mark.parametrize(
    ("dead", "words"),
    [
        (replace(DEAD, letters=()), "no message"),
        (replace(DEAD, letters=(1,)), "1 are dead letters"),
        (replace(DEAD, letters=(2, 1)), "not in their order"),
        (replace(DEAD, others=1), "1 messages of other aircraft"),
    ],
)
def test_what_must_not_happen_to_dead_letters(dead: DeadLettered, words: str) -> None:
    assert any(words in problem for problem in judge([], GAVE_UP, {}, dead=dead).problems)


def test_how_long_keys_of_killed_consumers_wait() -> None:
    attempts = [
        attempt(1, 9.99, "cut off"),
        attempt(2, 9.98, "cut off", key="N2", consumer="c05"),
        attempt(3, 9.0),
        attempt(1, 10.3, consumer="c05"),
        attempt(2, 10.9, key="N2"),
    ]
    assert take_overs(attempts, [(("c01", "c02"), 10.0)]) == pytest.approx([0.3])


def test_finished_messages_are_counted_in_steps() -> None:
    attempts = [attempt(1, 10.1), attempt(2, 10.2, "raised"), attempt(3, 10.3), attempt(4, 11.1), attempt(5, 9.0)]
    assert Story(attempts, [], (), None, None, 10.0, 1.4).finished(attempts) == [2, 0, 1]


def test_a_record_of_attempts_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "attempts.jsonl"
    message = Message("t", 1, 77, b"N1", event(7), 0, {}, None, 2, True, 99)
    with closing(DeliveryAttemptWriter(path)) as writer:
        writer.begins(message, 7, "c05.2", 1.0)
        writer.begins(message._replace(grant=100), 7, "c05.2", 1.5)
        writer.ends(message, 7, "c05.2", "overtaken", 2.0)
    with path.open("ab") as file:
        file.write(b'["e",3.0,"c05.2"')
    first, second = read_attempts([path])
    assert first == DeliveryAttempt("N1", 7, 2, True, 99, "c05.2", 1.0, 2.0, "overtaken")
    assert (second.token, second.outcome, second.ended_at) == (100, "cut off", None)
    assert first.place == "c05"
    path.write_text('["x",1,"c",2]\n')
    with pytest.raises(ValueError, match="no line of a record"):
        read_attempts([path])
