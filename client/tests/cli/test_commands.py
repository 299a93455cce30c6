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
from seriatim import Balance, BrokerLoad, GroupKey, HeadMove, SendError, WriterDescription, history, partition_of_key
from seriatim.cli import main
from seriatim.cli._execution import connection
from seriatim.cli._rendering.notes import Note, describe_note
from seriatim.cli.group import _reasons, lag_of, render
from seriatim_api.ids import make_offset

from .memory import FIRST_S, MemoryCluster, message_at, place_of

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    found = MemoryCluster()
    monkeypatch.setattr(connection, "client", found.client)
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


def test_heads_that_do_not_move_in_time_are_told(
    run: Run, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.make("flights", 2)
    loads = (BrokerLoad("g0-0", "g0", 0, 0.0), BrokerLoad("g1-0", "g1", 2, 5e6))
    move = HeadMove("flights", 1, 2, "g1", "g1-0", "g0", "g0-1", 2.5e6)  # every head of this cluster is at g0-0
    cluster.balance = Balance(loads, loads, (move,), "")
    monkeypatch.setattr("seriatim.cli.balance.LOOK_S", 0.001)
    monkeypatch.setattr("seriatim.cli.balance.PATIENCE_S", 0.01)
    status, out, _ = run("balance", "--run")
    assert (status, out.splitlines()[-1]) == (1, "0 of 1 heads have moved; look again in a while")


def test_more_partitions_need_a_yes_because_keys_move(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t", 3)
    status, _, err = run("topic", "alter", "t", "--partitions", "5")
    assert status == 2
    assert "80% of the keys move to another partition for good" in err
    assert "nothing was changed: stdin is no terminal to ask you on, so add --yes" in err
    assert cluster.topics["t"].partition_count == 3
    moved = sum(partition_of_key(b"%d" % key, 3) != partition_of_key(b"%d" % key, 5) for key in range(10_000))
    assert moved == pytest.approx(8_000, abs=200), "the share that it reports"
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


@pytest.mark.parametrize("is_typed", [True, False])
def test_the_live_line_waits_for_the_end_of_typing(
    run: Run, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, is_typed: bool
) -> None:
    """A line that is refreshed while an administrator types would run into what is typed."""
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


def test_nulls_and_headers_of_the_command_line_are_sent_and_printed(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t")
    headers = ("--header", "n=1", "--header", "n", "--header", "a=b=c", "--header", "=")
    lines = b"k:v\nk:\\N\nk:\n"
    status, _, err = run("produce", "t", "--key-separator", ":", "--null", "\\N", *headers, stdin=lines)
    assert status == 0, err
    log = cluster.logs["t", 0]
    assert [(message.value, message.value_is_null) for message in log] == [(b"v", False), (b"", True), (b"", False)]
    assert {message.header_list for message in log} == {(("n", b"1"), ("n", None), ("a", b"b=c"), ("", b""))}
    status, out, _ = run("consume", "t", "-g", "g", "--no-follow", "--output", "raw")
    assert out == "v\n(null)\n\n"
    assert run("produce", "t", "--size", "1", "--null", "x")[0] == 2
    assert run("produce", "t", "--header", "\udcff", stdin=b"v")[0] == 2


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
