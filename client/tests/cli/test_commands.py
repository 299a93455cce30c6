"""The commands against a cluster in memory: what they print, record and acknowledge, and how they end."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from seriatim import (
    Balance,
    BrokerLoad,
    Damage,
    GroupKey,
    HeadMove,
    QuarantinedMessage,
    RestartCheck,
    SendError,
    SendFailedError,
    SendUnknownError,
    WriterDescription,
    history,
    partition_of_key,
)
from seriatim.cli import _connect, main
from seriatim.cli._notes import Note, describe_note
from seriatim.cli.group import _reasons, lag_of, render
from seriatim_api.ids import make_offset

from .memory import FIRST_S, MemoryCluster, broker_group_of, message_at, place_of

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    found = MemoryCluster()
    monkeypatch.setattr(_connect, "client", found.client)
    monkeypatch.setattr("seriatim.cli.produce.STICKY_COUNT", 1)
    monkeypatch.setattr("seriatim.cli.chain.WATCH_PAUSE_S", 0.001)
    return found


@pytest.fixture
def run(cluster: MemoryCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: str, stdin: bytes | int | None = None) -> tuple[int, str, str]:
        if isinstance(stdin, int):
            read_end = stdin  # a descriptor, which is closed at the end
        else:
            read_end, write_end = os.pipe()
            os.write(write_end, stdin or b"")
            os.close(write_end)
        with monkeypatch.context() as patch, os.fdopen(read_end) as file:
            patch.setattr(sys, "stdin", file)
            status = 0
            try:
                main(list(words))
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 1
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return call


def test_groups_are_made_and_forgotten(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("flights")
    assert run("group", "create", "flights", "radar", "--start", "latest")[1] == "created radar on flights\n"
    assert run("group", "create", "flights", "radar")[1] == "there was already radar on flights\n"
    assert run("group", "delete", "flights", "radar", stdin=b"n\n")[0] == 2
    assert cluster.cursors
    assert run("group", "delete", "flights", "radar", "--yes")[1] == "deleted radar on flights\n"
    assert not cluster.cursors


def test_balance_is_shown_and_run(run: Run, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("balance")[1] == "all is even\n"
    assert run("balance", "--run") == (0, "all is even\n", "")
    cluster.make("flights", 2)
    before = (BrokerLoad("g0-0", "g0", 0, 0.0), BrokerLoad("g1-0", "g1", 2, 5e6))
    after = (BrokerLoad("g0-0", "g0", 1, 2.5e6), BrokerLoad("g1-0", "g1", 1, 2.5e6))
    move = HeadMove("flights", 1, 2, "g1", "g1-0", "g0", "g0-0", 2.5e6)
    cluster.balance = Balance(before, after, (move,), "")
    cluster.balanced = 0
    shown = run("balance")[1]
    assert [line.split() for line in shown.splitlines()] == [
        ["broker", "group", "heads", "load/s", "heads", "after", "load/s", "after"],
        ["g0-0", "g0", "0", "0", "1", "2.5M"],
        ["g1-0", "g1", "2", "5M", "1", "2.5M"],
        ["topic", "partition", "from", "to", "load/s"],
        ["flights", "1", "g1-0", "g0-0", "2.5M"],
    ]
    assert cluster.balanced == 0
    monkeypatch.setattr("seriatim.cli.balance.LOOK_S", 0.001)
    assert run("balance", "--run")[1].endswith("1 of 1 heads have moved\n")
    assert cluster.balanced == 1
    stuck = replace(move, to_broker="g1-1")  # every head of this cluster is at g0-0
    cluster.balance = Balance(before, after, (stuck,), "")
    monkeypatch.setattr("seriatim.cli.balance.PATIENCE_S", 0.01)
    status, out, _ = run("balance", "--run")
    assert (status, out.splitlines()[-1]) == (1, "0 of 1 heads have moved; look again in a while")
    told = json.loads(run("--output", "json", "balance")[1])
    assert (told["begun"], told["moves"][0]["target"]) == (False, "g1-1")


def test_topics_are_created_listed_described_and_deleted(run: Run, cluster: MemoryCluster) -> None:
    assert run("topic", "list")[2].startswith("there are no topics")
    assert run("topic", "create", "flights", "--partitions", "3")[1] == "created flights with 3 partitions\n"
    status, _, err = run("topic", "create", "flights")
    assert (status, err.splitlines()[0]) == (1, "error 121: there is a topic 'flights' already")
    assert "flights" in run("topic", "list")[1]
    described = run("topic", "describe", "flights")[1]
    assert "3 partitions, READY, flush: yes, kept: for ever, created 2023-11-14 22:13:20 UTC" in described
    assert described.count("3:g0▶") == 3
    listed = json.loads(run("--output", "json", "topic", "list")[1])
    assert [topic["name"] for topic in listed] == ["flights"]
    assert run("topic", "alter", "flights", "--partitions", "5", "--yes", "--retention", "2h")[1] == (
        "flights has 5 partitions, kept: 2h\n"
    )
    assert run("topic", "alter", "flights", "--retention", "0")[1].endswith("kept: for ever\n")
    assert run("topic", "alter", "flights")[0] == 2
    assert run("topic", "delete", "flights", stdin=b"n\n")[0] == 2
    assert "flights" in cluster.topics
    assert run("topic", "delete", "flights", "--yes")[1] == "deleted flights\n"
    assert run("topic", "describe", "flights")[0] == 1


def test_more_partitions_need_a_yes_because_keys_move(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t", 3)
    status, _, err = run("topic", "alter", "t", "--partitions", "5")
    assert status == 2
    assert "80% of the keys move to another partition for good" in err
    assert "nothing was changed: stdin is no terminal to ask you on, so add --yes" in err
    assert cluster.topics["t"].partition_count == 3
    moved = sum(partition_of_key(b"%d" % key, 3) != partition_of_key(b"%d" % key, 5) for key in range(10_000))
    assert moved == pytest.approx(8_000, abs=200), "the share that it tells"
    assert "50% of the keys" in run("topic", "alter", "t", "--partitions", "6")[2]
    assert run("topic", "alter", "t", "--partitions", "5", "--yes")[0] == 0
    assert run("topic", "alter", "t", "--partitions", "5")[0] == 0, "nothing moves"


def test_the_form_of_the_output_is_taken_on_both_sides_of_the_command(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t")
    wanted = run("--output", "json", "topic", "list")
    assert json.loads(wanted[1])[0]["name"] == "t"
    assert run("topic", "list", "--output", "json") == wanted
    assert run("topic", "--output=json", "list") == wanted
    assert run("--output", "json", "topic", "list", "--output", "text") == run("topic", "list")
    assert json.loads(run("topic", "describe", "x", "--output", "json")[2])["error"]["number"] == 120
    assert run("topic", "list", "--output", "xml")[0] == 2
    assert run("consume", "t", "--output", "raw")[:2] == (0, ""), "its own forms are others"


def test_an_offset_is_accepted_as_it_is_printed(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t")
    assert run("produce", "t", "--size", "5", "--count", "9")[0] == 0
    assert run("consume", "t", "-g", "g", "--count", "4")[0] == 0
    place = json.loads(run("group", "describe", "t", "g", "--output", "json")[1])[0]["next_offset"]
    assert place == "3:4"
    assert f" {place} " in run("group", "describe", "t", "g")[1]
    assert run("consume", "t", "-p", "0", "--from", place, "--output", "raw")[1].splitlines()[0].startswith("4 ")
    rewound = run("group", "rewind", "t", "g", "--to", place, "-p", "0", "--dry-run", "--output", "json")[1]
    assert json.loads(rewound)[0]["to_offset"] == place


def test_lines_are_sent_in_order_and_consumed_in_order(run: Run, cluster: MemoryCluster, tmp_path: Path) -> None:
    cluster.make("t", 2)
    lines = b"".join(b"k%d:value %d\n" % (number % 2, number) for number in range(500))
    sent, read = tmp_path / "sent.jsonl", tmp_path / "read.jsonl"
    status, out, err = run("produce", "t", "--key-separator", ":", "--history", str(sent), stdin=lines)
    assert (status, out) == (0, "")
    assert "500 sent: 500 ok" in err
    assert "longest gap" in err
    words = ("consume", "t", "-g", "readers", "--no-follow", "--history", str(read))
    status, out, err = run(*words)
    assert status == 0
    printed = out.splitlines()
    assert "0  3:0          k1  value 1" in printed
    for key in ("k0", "k1"):
        numbers = [int(line.rsplit(" ", 1)[1]) for line in printed if f" {key} " in line]
        assert numbers == sorted(numbers)
        assert len(numbers) == 250
    assert "active at 3:0" in err
    assert "500 messages" in err
    report = history.check([sent, read])
    assert report.ok, history.render(report)
    assert report.counts["delivered"] == 500
    assert set(cluster.cursors.values()) == {250}
    assert run("produce", "t", "--key", "k0", "--partition", "1", stdin=b"one more")[0] == 0
    assert run(*words)[1].splitlines() == ["1  3:250        k0  one more"]


def test_what_is_not_printed_is_not_acknowledged(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t")
    assert run("produce", "t", "--size", "20", "--count", "250")[0] == 0
    assert {len(message.value) for message in cluster.logs["t", 0]} == {20}
    status, out, _ = run("consume", "t", "-g", "g", "--count", "7", "--output", "raw")
    assert (status, len(out.splitlines())) == (0, 7)
    assert cluster.cursors["t", "g", 0] == 7
    out = run("--output", "json", "consume", "t", "-g", "g", "--count", "1", "--from", "latest")[1]
    assert json.loads(out)["offset"] == "3:7"
    assert cluster.started_at == ["earliest", "latest"]


def test_the_sum_of_what_was_consumed_names_repeats(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t")
    log = cluster.logs["t", 0]
    log += [message_at("t", 0, index, b"v")._replace(maybe_repeated=index > 2) for index in range(5)]
    assert run("consume", "t", "-g", "g", "--count", "4")[2].endswith("4 messages, 1 of them maybe repeated\n")
    assert run("consume", "t", "-g", "h", "--count", "3")[2].endswith("3 messages\n")


def test_outcomes_that_are_not_ok_show_in_the_status_and_the_summary(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t")
    cluster.refuse[b"bad"] = SendFailedError("too large", cause_number=110)
    cluster.refuse[b"odd"] = SendUnknownError("nobody answered", cause_number=602)
    status, out, err = run("produce", "t", "-v", stdin=b"good\nbad\nodd\nbad\n")
    assert status == 1
    assert [line.split()[0] for line in out.splitlines()] == ["ok", "failed", "unknown", "failed"]
    assert "4 sent: 1 ok, 2 failed, 1 unknown" in err
    assert "2 × [110] failed: too large" in err
    summary = json.loads(run("--output", "json", "produce", "t", stdin=b"bad\n")[1])
    assert (summary["failed"], summary["errors"]) == (1, {"[110] failed: too large": 1})


def test_a_line_without_the_separator_ends_the_command(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t")
    lines = b"k1:one\nk2:two\nthree\nk4:four\n"
    status, _, err = run("produce", "t", "--key-separator", ":", stdin=lines)
    assert status == 1
    assert "2 sent: 2 ok" in err
    assert "error 100: line 3 has no ':': it and all lines after it are not sent; those before it are" in err
    assert [message.key for message in cluster.logs["t", 0]] == [b"k1", b"k2"]
    assert run("produce", "t", "--key-separator", ":", "--key", "k", "--count", "3", stdin=lines)[0] == 0
    assert [message.key for message in cluster.logs["t", 0]][2:] == [b"k1", b"k2", b"k"]
    assert run("produce", "t", "--key-separator", ":", "--count", "2", stdin=lines)[0] == 0, "line 3 is not looked at"
    status, _, err = run("produce", "t", "--key-separator", "", stdin=lines)
    assert (status, "--key-separator is empty" in err) == (2, True)


@pytest.mark.parametrize("is_typed", [True, False])
def test_the_live_line_waits_for_the_end_of_typing(
    run: Run, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, is_typed: bool
) -> None:
    """A line that is refreshed while a person types would run into what is typed."""
    shown: list[str] = []

    @asynccontextmanager
    async def live_line(_settings: object, text: Callable[[], str]) -> AsyncIterator[None]:
        shown.append(text())
        yield

    monkeypatch.setattr("seriatim.cli.produce.live_line", live_line)
    cluster.make("t")
    keyboard, terminal = pty.openpty()
    os.write(keyboard, b"one\ntwo\n\x04")
    status, _, err = run("produce", "t", stdin=terminal if is_typed else b"one\ntwo\n")
    os.close(keyboard)
    if not is_typed:
        os.close(terminal)
    assert status == 0
    assert "2 sent: 2 ok" in err
    assert ["acked 0  waiting 0" in text for text in shown] == [not is_typed]


def test_a_rate_is_kept_and_a_count_ends(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t")
    assert run("produce", "t", "--count", "2", stdin=b"a\nb\nc\n")[0] == 0
    assert [message.value for message in cluster.logs["t", 0]] == [b"a", b"b"]
    status, out, _ = run("--output", "json", "produce", "t", "--size", "10", "--count", "20", "--rate", "100/s")
    assert status == 0
    assert json.loads(out)["duration_s"] >= 0.17
    assert run("produce", "t", "--rate", "often")[0] == 2
    assert run("produce", "t", "--size", "1", "--key-separator", ":")[0] == 2


def test_an_interrupt_ends_in_good_order(
    run: Run, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster.make("t")

    class Interrupting(dict[bytes, SendError]):
        def get(self, key: bytes, default: SendError | None = None) -> SendError | None:  # type: ignore[override]
            if key.startswith(b"17 "):
                os.kill(os.getpid(), signal.SIGINT)
            return super().get(key, default)

    monkeypatch.setattr(cluster, "refuse", Interrupting())
    path = tmp_path / "h.jsonl"
    status, _, err = run("produce", "t", "--size", "10", "--history", str(path))
    assert status == 0
    assert " sent: " in err
    assert history.check(path).counts["no_outcome"] == 0


def test_chains_are_shown_and_watched(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t", 2)
    assert "┏━ 3 · g0 ━" in run("chain", "show", "t", "0")[1]
    assert run("chain", "show", "t")[1].count("3:g0▶") == 2
    assert [chain["epoch"] for chain in json.loads(run("--output", "json", "chain", "show", "t")[1])] == [7, 7]
    assert run("chain", "watch", "t", "1")[1].count("3:g0▶") == 1
    assert len(run("--output", "json", "chain", "watch", "t")[1].splitlines()) == 2
    assert run("chain", "show", "nothing")[0] == 1


def test_a_watched_chain_names_the_brokers_that_do_not_answer(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t", 1)
    (broker,) = cluster.brokers
    cluster.brokers = (replace(broker, live=False), replace(broker, name="g0-1"))
    assert "# partition 0: g0-0 does not answer" in run("chain", "watch", "t")[2]
    cluster.brokers = (replace(broker, live=False), replace(broker, name="g0-1", live=False))
    text = "partition 0 waits for g0-0 and g0-1: no member of g0 answers"
    assert f"# {text}" in run("chain", "watch", "t")[2]
    assert {"note": "waits", "partition": 0, "text": text} in [
        json.loads(line) for line in run("--output", "json", "chain", "watch", "t")[2].splitlines()
    ]


def test_groups_are_described(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t", 2)
    run("produce", "t", "--size", "10", "--count", "10")
    run("consume", "t", "-g", "g", "--count", "3")
    lines = run("group", "describe", "t", "g")[1].splitlines()
    assert lines[1].split() == ["0", "3:3", "2", "g0-0", "c1", "c2"]
    assert lines[-1].split() == ["all", "7"]


def test_the_name_of_a_consumer_types_nothing_on_the_terminal(run: Run, cluster: MemoryCluster) -> None:
    """Each client chooses its consumer's name."""
    cluster.make("t", 1)
    run("produce", "t", "--size", "10", "--count", "1")
    run("consume", "t", "-g", "g", "--count", "1")
    cluster.places["g", 0] = {"active_consumer": "web\x1b]0;owned\x07\x9b2J"}
    text = run("group", "describe", "t", "g")[1]
    assert "web\\x1b]0;" in text
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
    row = run("--output", "json", "group", "describe", "t", "g")[1]
    assert not {"\x1b", "\x07", "\x9b"} & set(row)
    assert "\\u009b" in row


def test_lags_of_many_groups_are_asked_for_up_to_a_limit(
    run: Run, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seriatim.cli.group.LAGS_MAX", 2)
    cluster.make("t")
    cluster.cursors |= {("t", name, 0): 0 for name in "abc"}
    lines = [line.split() for line in run("group", "list", "t")[1].splitlines()]
    assert lines[1:] == [["a", "0"], ["b", "0"], ["c", "?"]]


def test_a_lag_that_is_only_a_bound_says_so() -> None:
    unknown = place_of(2, 0, 7, 0, active_consumer="", error="[300] moved")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render([unknown]))
    line = console.export_text().splitlines()[1].split()
    assert line[:3] == ["2", "0:7+", "?"]
    assert line[4] == "?", "the reason is below the table, and not in a column"
    assert _reasons([unknown, replace(unknown, partition=4)]) == ["?      partitions 2, 4: [300] moved"]
    assert str(lag_of([unknown])) == "?"
    rows = [place_of(0, 0, 7, 7, end_is_at_least=True), place_of(1, 0, 7, 5)]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(rows))
    cells = [line.split() for line in console.export_text().splitlines()]
    assert [cells[1][2], cells[2][2], cells[-1][1]] == ["7+", "5", "12+"]


NIGHTLY = WriterDescription(
    "orders", "nightly", 2, "query", "DONE", 7, 1000, 3, FIRST_S * 1000, (FIRST_S + 1) * 1000, ephemeral=False
)
NEW = WriterDescription("flights", "new", 1, "", "NEW", None, 0, 0, 0, 0, ephemeral=True)


def test_writers_are_listed_described_and_forgotten(run: Run, cluster: MemoryCluster) -> None:
    assert run("writer", "list", "orders")[2] == "no writer was opened on orders\n"
    cluster.writers["orders", "nightly"] = NIGHTLY
    cluster.writers["flights", "new"] = NEW
    listed = [line.split() for line in run("writer", "list")[1].splitlines()]
    assert listed == [
        ["topic", "writer", "state", "sequence", "rows", "epoch", "owner"],
        ["orders", "nightly", "DONE", "7", "1000", "2", "query"],
        ["flights", "new", "NEW", "-", "0", "1"],
    ]
    assert run("writer", "describe", "orders", "nightly")[1].splitlines() == [
        "nightly on orders: DONE, epoch 2, of query",
        "publication 7: 1000 rows, decided 2023-11-14 22:13:20 UTC, done 2023-11-14 22:13:21 UTC",
        "up to 3 of these rows are lost: the disks that they were staged on were declared lost",
    ]
    assert run("writer", "describe", "flights", "new")[1] == "new on flights: NEW, epoch 1\n"
    assert json.loads(run("--output", "json", "writer", "list", "flights")[1])[0]["sequence"] is None
    assert run("writer", "delete", "orders", "nightly", stdin=b"n\n")[0] == 2
    assert run("writer", "delete", "orders", "nightly", "--yes")[1] == "deleted nightly on orders\n"
    assert list(cluster.writers) == [("flights", "new")]


def test_a_run_is_declared_dead_only_when_confirmed(run: Run, cluster: MemoryCluster) -> None:
    assert "g0-0" in run("member", "list")[1]
    assert run("member", "declare-dead", "g0-0", "--run", "4", "--issuer", "me", stdin=b"n\n")[0] == 2
    assert cluster.dead == []
    assert run("member", "declare-dead", "g0-0", "--run", "4", "--issuer", "me", "--yes")[0] == 0
    assert cluster.dead == [("g0-0", 4, "me")]


def test_a_scrub_says_what_it_read_and_fails_if_anything_was_damaged(run: Run, cluster: MemoryCluster) -> None:
    status, out, _ = run("scrub")
    assert (status, out.strip()) == (0, "g0-0: 4 segments, 3 MB read, all well")
    cluster.damages.append(Damage("g0-0", 7, 2, 40, "a bit was flipped"))
    status, out, _ = run("scrub", "g0-0")
    assert status == 1
    assert "1 damaged" in out
    assert "partition id 7, segment 2: a bit was flipped" in out


def test_what_is_in_quarantine_is_counted_and_exported(run: Run, cluster: MemoryCluster, tmp_path: Path) -> None:
    assert run("chain", "recover", "g0-0")[1].strip() == "g0-0: nothing is in quarantine"
    cluster.quarantined.append(QuarantinedMessage("g0-0", 7, 2, 40, 40, None, b"value", {"h": b"1"}, 5))
    status, out, _ = run("chain", "recover", "g0-0", "--export", str(tmp_path / "kept"))
    assert (status, out.strip()) == (0, "g0-0: partition id 7, segment 2: 1 messages")
    row = json.loads((tmp_path / "kept").read_text())
    assert (row["index"], row["key"], row["value"]) == (40, None, "dmFsdWU=")


def test_a_gap_is_declared_only_when_confirmed(run: Run, cluster: MemoryCluster) -> None:
    assert run("chain", "declare-gap", "orders", "0", "3", "--issuer", "me", stdin=b"n\n")[0] == 2
    assert cluster.gaps == []
    assert run("chain", "declare-gap", "orders", "0", "3", "--issuer", "me", "--yes")[0] == 0
    assert cluster.gaps == [("orders", 0, 3, "me")]


@pytest.mark.parametrize(
    ("note", "text"),
    [
        (Note("active", 1, make_offset(2, 5)), "partition 1: active at 2:5"),
        (Note("standby", 1), "partition 1: standing by"),
        (Note("crossed", 0, make_offset(3, 0)), "partition 0: crossed into the segment at 3:0"),
        (Note("gap", 0, make_offset(3, 0), make_offset(4, 0), "lost"), "gap from 3:0 to 4:0: lost"),
    ],
)
def test_notes_are_sentences(note: Note, text: str) -> None:
    assert text in describe_note(note)


def groups_of(cluster: MemoryCluster) -> None:
    cluster.broker_groups["g0"] = broker_group_of("g0", 2, 2, 4)
    cluster.broker_groups["g1"] = broker_group_of("g1", 1, 1, 3)


def test_broker_groups_are_listed(run: Run, cluster: MemoryCluster) -> None:
    groups_of(cluster)
    lines = run("broker-group", "list")[1].splitlines()
    assert lines[1].split() == ["g0", "active", "1", "g0-0,", "g0-1", "2", "of", "2", "2", "4"]
    assert lines[2].split()[5:] == ["1", "of", "2", "1", "3"]
    assert len(lines) == 3
    cluster.broker_groups["g1"] = replace(cluster.broker_groups["g1"], waits_for="segment 3 [of] 7 is held up")
    assert run("broker-group", "list")[1].splitlines()[3:] == ["g1: segment 3 [of] 7 is held up"]


def test_a_broker_group_is_drained_waited_for_and_taken_back(
    run: Run, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups_of(cluster)
    monkeypatch.setattr("seriatim.cli.broker_group.LOOK_S", 0.001)
    assert run("broker-group", "cordon", "g0")[:2] == (0, "g0 is cordoned\n")
    assert run("broker-group", "drain", "g0", "--wait")[:2] == (0, "g0 is draining, and nothing keeps it\n")
    assert (cluster.broker_groups["g0"].heads, cluster.broker_groups["g0"].segments) == (0, 0)
    assert run("broker-group", "activate", "g1", "--weight", "2.5")[:2] == (0, "g1 is active\n")
    assert cluster.broker_groups["g1"].weight == 2.5
    assert run("broker-group", "remove", "g0", stdin=b"n\n")[0] == 2
    assert run("broker-group", "remove", "g0", "--yes")[:2] == (0, "g0 is forgotten\n")
    assert list(cluster.broker_groups) == ["g1"]


def test_a_broker_may_be_stopped_or_not(run: Run, cluster: MemoryCluster) -> None:
    cluster.checks["g0-0"] = RestartCheck("safe", "all members have all of it", 0, 0, 0, 0, 3)
    cluster.checks["g0-1"] = RestartCheck("last_copy", "no other disk holds it", 7, 2, 40, 5, 3)
    assert run("member", "check-restart", "g0-0")[:2] == (0, "g0-0 may be stopped: all members have all of it\n")
    status, out, _ = run("member", "check-restart", "g0-1")
    assert (status, out) == (1, "g0-1 must not be stopped (last copy): no other disk holds it\n")
    assert json.loads(run("--output", "json", "member", "check-restart", "g0-1")[1])["verdict"] == "last_copy"
    assert run("member", "remove", "g0-1", "--yes")[:2] == (0, "g0-1 is forgotten\n")
    assert cluster.removed == ["g0-1"]
    words = ("--run", "4", "--issuer", "me", "--incarnation", "abc", "--evidence", "reaped", "--yes")
    assert run("member", "declare-dead", "g0-0", *words)[0] == 0
    assert cluster.dead == [("g0-0", 4, "me", "abc", "reaped")]


def test_what_is_consumed_by_key_is_recorded_with_the_keys_that_wait(
    run: Run, cluster: MemoryCluster, tmp_path: Path
) -> None:
    cluster.make("t", 2)
    sent, read = tmp_path / "sent.jsonl", tmp_path / "read.jsonl"
    lines = b"".join(b"k%d:%d\n" % (number, number) for number in range(40))  # `receive` gives each key once
    assert run("produce", "t", "--key-separator", ":", "--history", str(sent), stdin=lines)[0] == 0
    cluster.waiting["t", "g"] = [GroupKey(0, b"kparked", b"parked", "parked", 5, 0, make_offset(3, 90), 1, 0, "no", 1)]
    words = ("consume", "t", "-g", "g", "--mode", "key-ordered", "--no-follow", "--history", str(read))
    status, _out, err = run(*words)
    assert status == 0, err
    report = history.check([sent, read])
    assert report.ok, history.render(report)
    kinds = [json.loads(line) for line in read.read_text().splitlines()]
    assert {line["y"] for line in kinds if line["k"] == "deliver"} == {f"k{number}" for number in range(40)}
    assert sum(line["k"] == "ack" and "u" in line for line in kinds) == 40
    assert [line["y"] for line in kinds if line["k"] == "parked"] == ["parked"]
    assert kinds[-2]["drained"]


def test_consumers_of_other_modes_acknowledge_each_message_that_was_printed(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t", 2)
    for partition in (0, 1):
        log = cluster.logs["t", partition]
        log += [message_at("t", partition, index, b"%d" % index, b"k") for index in range(3)]
    assert run("consume", "t", "-g", "g", "--mode", "key-ordered", "--count", "4")[0] == 0
    assert cluster.acked == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert run("consume", "t", "-g", "g", "--mode", "shared", "--no-follow")[0] == 0
    assert run("consume", "t", "-g", "g", "--mode", "key_ordered", "--no-follow")[0] == 0, "as programs write it"
    assert "'keyed' is not one of" in run("consume", "t", "-g", "g", "--mode", "keyed")[2]
    assert cluster.acked[4:] == [(1, 1), (1, 2)]
    assert run("consume", "t", "-g", "b", "--mode", "broadcast", "--count", "1")[0] == 0
    assert run("consume", "t", "-g", "b", "--mode", "broadcast", "--from", "earliest", "--count", "1")[0] == 0
    assert cluster.modes == ["key_ordered", "shared", "key_ordered", "broadcast", "broadcast"]
    assert cluster.started_at == ["earliest", "earliest", "earliest", None, "earliest"]
