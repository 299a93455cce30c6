"""`seriatim group rewind, skip, pause, resume`: what is shown, what is asked, what is done, and how it is refused."""

from __future__ import annotations

import json

import pytest
from seriatim import GroupKey
from seriatim_api.ids import make_offset
from seriatim_api.key_names import key_of_name, name_of_key, name_of_offset

from .memory import MemoryCluster, message_at
from .test_commands import Run, cluster, run
from .test_recorded import letter_of

__all__ = ["cluster", "run"]


@pytest.fixture
def read(run: Run, cluster: MemoryCluster) -> MemoryCluster:
    """Ten messages on two partitions, all read by group g."""
    cluster.make("t", 2)
    run("produce", "t", "--size", "10", "--count", "10")
    run("consume", "t", "-g", "g", "--count", "10")
    return cluster


def test_it_is_carried_out_with_the_id_that_was_given(run: Run, read: MemoryCluster) -> None:
    words = ("group", "rewind", "t", "g", "--to", "3:2", "--partition", "1", "--yes", "--request-id", "ab" * 16)
    assert run(*words)[1].splitlines()[-1] == "rewound g on t: 1 partition"
    assert read.operated == [("t", "g", "rewind", b"\xab" * 16)]


def test_a_partition_without_an_answer_is_told_with_the_way_to_repeat(run: Run, read: MemoryCluster) -> None:
    read.unanswered = (1,)
    status, out, err = run("group", "rewind", "t", "g", "--to", "earliest", "--yes", "--request-id", "ab" * 16)
    assert status == 1
    assert out.splitlines()[-1] == "rewound g on t: 1 partition"
    assert "1 of 2" in err
    assert "partition 1: [600] silent" in err
    assert f"--request-id {'ab' * 16}" in err


def test_the_consumers_of_a_broadcast_group_are_shown_together(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t")
    log = cluster.logs["t", 0]
    log += [message_at("t", 0, index, b"v", b"k") for index in range(5)]
    cluster.cursors |= {("t", "plain", 0): 1, ("t", "g/c1", 0): 5, ("t", "g/c2", 0): 3}
    cluster.places["g/c2", 0] = {"active_consumer": ""}
    lines = [line.split() for line in run("group", "list", "t")[1].splitlines()]
    assert lines == [["group", "lag"], ["g/", "(2", "consumers)", "-"], ["plain", "4"]]
    rows = json.loads(run("--output", "json", "group", "list", "t")[1])
    assert [(row["group"], row["lag"]) for row in rows] == [("g/c1", 0), ("g/c2", 2), ("plain", 4)]
    assert [line.split() for line in run("group", "list")[1].splitlines()] == [
        ["topic", "group", "lag"],
        ["t", "g/", "(2", "consumers)", "-"],
        ["t", "plain", "4"],
    ]
    assert json.loads(run("--output", "json", "group", "list")[1]) == rows
    assert "consumer groups: g/  (2 consumers), plain" in run("topic", "describe", "t")[1]
    status, out, _ = run("group", "describe", "t", "g")
    assert status == 0
    assert [line.split() for line in out.splitlines()[:3]] == [
        ["consumer", "lag", "connected"],
        ["c1", "0", "yes"],
        ["c2", "2", "no"],
    ]
    assert "broadcast: each consumer gets all messages. 2 consumers." in out
    assert list(json.loads(run("--output", "json", "group", "describe", "t", "g/")[1])) == ["g/c1", "g/c2"]
    assert run("group", "describe", "t", "g/c1")[0] == 0
    assert run("group", "delete", "t", "g", "--yes")[1] == "deleted g on t: the positions of 2 consumers\n"
    assert run("group", "list", "t")[1] == "group  lag\nplain    4\n"


class Questions:
    """Answers yes to each question, and keeps it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        for command in ("consumer_group_keys", "dead_letter"):
            monkeypatch.setattr(f"seriatim.cli.{command}.confirm", self.confirm)

    async def confirm(self, question: str, *, otherwise: str) -> None:
        """An administrator reads it."""
        assert otherwise
        self.asked.append(question)


def waiting(partition: int, name: bytes) -> GroupKey:
    return GroupKey(partition, name, key_of_name(name), "parked", 5, 0, make_offset(3, 1), 1, 0, "no", 1)


LOOK_ALIKE = [waiting(0, name_of_key(key)) for key in (b"", b"\0", b"\\x00", b"%00", b"message 1:0", b"%message:1:0")]
KEYLESS = [waiting(partition, name_of_offset(make_offset(1, 0))) for partition in (0, 1)]


@pytest.mark.parametrize("found", [*LOOK_ALIKE, KEYLESS[0]], ids=lambda found: found.shown)
def test_a_key_that_is_shown_is_chosen_alone(run: Run, cluster: MemoryCluster, found: GroupKey) -> None:
    cluster.waiting["t", "g"] = [*LOOK_ALIKE, KEYLESS[0]]
    shown = json.loads(run("--output", "json", "group", "parked", "t", "g")[1])
    assert len({row["key"] for row in shown}) == len(LOOK_ALIKE) + 1
    done = run("--output", "json", "group", "skip", "t", "g", "--key", found.shown, "--yes")
    assert [row["key"] for row in json.loads(done[1])] == [found.shown]


def test_the_empty_key_is_not_every_key(run: Run, cluster: MemoryCluster) -> None:
    cluster.waiting["t", "g"] = LOOK_ALIKE
    for command in ("release", "skip", "dead-letter"):
        yes = () if command == "release" else ("--yes",)
        status, out, _ = run("--output", "json", "group", command, "t", "g", "--key", "", *yes)
        assert (status, [row["key"] for row in json.loads(out)]) == (0, ["%empty"])
    cluster.waiting["t", "g"] = LOOK_ALIKE[1:]
    status, _, err = run("group", "skip", "t", "g", "--key", "", "--yes")
    assert (status, "key %empty of g does not wait" in err) == (1, True)


def test_one_text_of_messages_on_two_partitions_needs_the_partition(run: Run, cluster: MemoryCluster) -> None:
    cluster.waiting["t", "g"] = KEYLESS
    status, _, err = run("group", "skip", "t", "g", "--key", "%message:1:0", "--yes")
    assert (status, "waits on partitions 0 and 1: say which with --partition" in err) == (1, True)
    status, out, _ = run("--output", "json", "group", "skip", "t", "g", "--key", "%message:1:0", "-p", "1", "--yes")
    assert [(row["partition"], row["key"]) for row in json.loads(out)] == [(1, "%message:1:0")]


def test_the_question_names_the_keys(run: Run, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.waiting["t", "g"] = [*LOOK_ALIKE[:2], waiting(1, b"ka")]
    questions = Questions(monkeypatch)
    run("group", "skip", "t", "g", "--key", "")
    run("group", "dead-letter", "t", "g", "--all-parked")
    cluster.waiting["t", "g"] = [waiting(0, b"kn%d" % number) for number in range(1_030)]
    run("group", "skip", "t", "g", "--all-parked")
    assert questions.asked[:2] == [
        "Pass over the first message of 1 key of g on t (%empty)?",
        (
            "Send to the dead-letter topic the first message of 3 keys of g on t "
            "(%empty on partition 0, %00 on partition 0, a on partition 1)?"
        ),
    ]
    named = ", ".join(f"n{number}" for number in range(20))
    assert questions.asked[2].endswith(f"of 1,030 keys of g on t ({named} and 1,010 more)?")


def test_the_question_about_dead_letters_names_their_keys(
    run: Run, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [letter_of(0, 4, key, b"no", index=5) for key in (b"", b"", b"-", None)]
    cluster.letters = list(letters)
    questions = Questions(monkeypatch)
    run("dead-letter", "replay", "t.g.dead", "--all")
    cluster.letters = list(letters)
    run("dead-letter", "drop", "t.g.dead", "--key", "")
    assert questions.asked[0].endswith("to their groups (keys: %empty, %2d, - at 2:4)?")
    assert questions.asked[1].endswith("cannot be replayed (keys: %empty)?")


def test_dead_letters_of_a_deleted_topic_need_a_word_to_be_replayed(run: Run, cluster: MemoryCluster) -> None:
    cluster.letters, cluster.remade = [letter_of(0, 4, b"k", b"no", index=5)], True
    status, _, err = run("dead-letter", "replay", "flights.keyed.dead", "--all", "--yes")
    assert status == 1
    assert "--into-new-topic" in err
    words = ("dead-letter", "replay", "flights.keyed.dead", "--all", "--yes", "--into-new-topic")
    assert run(*words)[1] == "replayed 1 dead letter of flights.keyed.dead\n"
