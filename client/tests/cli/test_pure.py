"""The parts of the command that touch no cluster: drawing, counting, reading input, finding addresses."""

from __future__ import annotations

import fcntl
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import click
import pytest
from rich.console import Console, RenderableType
from rich.table import Table
from seriatim import Segment
from seriatim.cli._operations.message_sources import Message, Pace, generate, parse_rate, read_lines, split_key
from seriatim.cli._options.settings import BOOTSTRAP_DEFAULT, Settings, TlsOptions, local_cluster, resolve
from seriatim.cli._rendering.chain_view import compact, draw_chain, draw_ribbons
from seriatim.cli._rendering.meter import Latencies, SendMeter, describe

from .memory import chain_of, segment_of

RECORDED = Path(__file__).parent / "recorded"


def sealed(no: int, group: str, length: int) -> Segment:
    return segment_of(no, group, (f"{group}-0", f"{group}-1"), "SEALED", length, server=f"{group}-1")


CHAIN = chain_of(
    "flights",
    0,
    17,
    ("g2", "g0", "g1"),
    (
        *(sealed(no, f"g{no % 3}", length) for no, length in enumerate((120_332, 12_002, 3_000_123, 7, 0, 99))),
        segment_of(
            6, "g0", ("g0-1", "g0-0"), "SEALED", 500_000,
            server="g0-0", tail_from=499_990, tail_copies=("g1-0", "g1-1"),
        ),
        segment_of(7, "g1", ("g1-0", "g1-1"), "UNSETTLED", None),
        segment_of(8, "g2", ("g2-0", "g2-1"), "LOST", 1_000, server=""),
        segment_of(9, "far-away-disks", ("far-away-disks-0", "far-away-disks-1"), "OPEN", None),
    ),
    pages=1,
)  # fmt: skip
FIRST = segment_of(0, "g0", ("g0-0", "g0-1"), "OPEN", None, incomplete_table=True)
FRESH = chain_of("flights", 12, 1, ("g0",), (FIRST,))


def drawn(what: RenderableType, width: int, *, colour: bool = False) -> str:
    console = Console(width=width, force_terminal=colour, color_system="standard" if colour else None)
    with console.capture() as capture:
        console.print(what)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


@pytest.mark.parametrize("width", [80, 160])
def test_drawings_are_as_recorded(width: int) -> None:
    """To record again after a change: look at the new text, and write it with SERIATIM_RECORD=1."""
    text = "\n".join(
        (
            drawn(draw_chain(CHAIN, width=width), width),
            drawn(draw_chain(FRESH, width=width), width),
            drawn(draw_ribbons([CHAIN, FRESH], width=width), width),
        )
    )
    path = RECORDED / f"chain-{width}.txt"
    if os.environ.get("SERIATIM_RECORD"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("width", [20, 41, 80, 81, 160])
def test_no_line_is_wider_than_the_window(width: int) -> None:
    lines = drawn(draw_chain(CHAIN, width=width, row_count_max=None), width).splitlines()
    assert max(len(line) for line in lines) <= width
    assert sum(line.count(" · ") for line in lines) == len(CHAIN.segments)


def test_colour_adds_nothing_that_is_not_in_the_text() -> None:
    plain = drawn(draw_chain(CHAIN, width=80), 80)
    for state in ("OPEN", "SEALED", "UNSETTLED", "LOST"):
        assert state in plain
    coloured = drawn(draw_chain(CHAIN, width=80), 80, colour=True)
    assert "\x1b[1;32m" in coloured


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (99_999, "99,999"), (1_234_567, "1.2M"), (123_456_789, "123M"), (5_000_000_000, "5.0G")],
)
def test_counts_are_short(number: int, text: str) -> None:
    assert compact(number) == text


def test_percentiles_are_right_to_two_percent() -> None:
    latencies = Latencies()
    for duration_ms in range(1, 1001):
        latencies.add(float(duration_ms))
    for share, exact in ((0.5, 500), (0.99, 990), (1.0, 1000)):
        found = latencies.percentile(share)
        assert found == pytest.approx(exact, rel=0.021)
    assert Latencies().percentile(0.5) is None


def test_a_gap_counts_only_while_something_waits() -> None:
    meter = SendMeter(0.0)
    meter.send(0, 1.0)
    meter.outcome(0, "ok", 1.0, 1.2)
    meter.send(0, 9.0, 2)  # nothing waited from 1.2 to 9.0
    meter.outcome(0, "ok", 9.0, 9.1)
    assert meter.gap_s_max == pytest.approx(0.2)
    assert meter.gap(9.6) == (pytest.approx(0.5), 0)
    meter.outcome(0, "unknown", 9.0, 9.8)  # not an acceptance: but nothing waits any more
    assert meter.gap(20.0) == (0, None)
    summary = meter.summary()
    meter.send(0, 21.0, 2)
    assert "3 sent: 2 ok, 1 unknown, in" in describe(summary)
    assert "5 sent: 2 ok, 1 unknown, 2 without an outcome, in" in describe(meter.summary())
    assert (summary.sent, summary.ok, summary.failed, summary.unknown) == (3, 2, 0, 1)
    assert (summary.gap_ms_max, summary.gap_partition) == (200.0, 0)
    assert "1 unknown" in describe(summary)
    assert "longest gap 200 ms (partition 0)" in describe(summary)


def test_a_partition_that_waits_is_named_though_others_go_on() -> None:
    meter = SendMeter(0.0)
    for partition in (0, 1, 2):
        meter.send(partition, 1.0)
    for step in range(10, 41):
        meter.send(3, step / 10)
        meter.outcome(3, "ok", step / 10, step / 10)
    assert "longest gap" in meter.line(1.9, lambda _: "g0-0")
    assert meter.line(4.0, lambda partition: f"g{partition}-0").endswith("partition 0 (and 2 more) waits 3 s for g0-0")
    meter.outcome(0, "ok", 1.0, 4.5)
    meter.outcome(1, "ok", 1.0, 4.6)
    assert meter.line(4.7, lambda _: None).endswith("partition 2 waits 4 s for a master")
    meter.outcome(2, "ok", 1.0, 4.7)
    assert meter.line(4.8, lambda _: None).endswith("longest gap 3.70 s")
    assert meter.summary().gap_partition == 2


def test_the_rate_is_of_the_last_second() -> None:
    meter = SendMeter(0.0)
    for step in range(30):
        meter.send(0, step / 10)
        meter.outcome(0, "ok", step / 10, step / 10)
    assert meter.rate(2.95) == 10
    assert meter.rate(10.0) == 0


@pytest.mark.parametrize(
    ("text", "rate"), [("500", 500), ("500/s", 500), ("2k/s", 2000), ("1.5k", 1500), ("1M/s", 1e6)]
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0", "fast", "-1/s", "5/min"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="a rate is written like"):
        parse_rate(text)


def test_the_pace_is_even_and_catches_up_by_a_second_at_most() -> None:
    pace = Pace(10, 0.0)
    assert [round(pace.take(0.0), 3) for _ in range(3)] == [0.0, 0.1, 0.2]
    held_up = [pace.take(60.0) for _ in range(12)]
    assert held_up[0] == -1.0
    assert sum(wait_s <= 1e-9 for wait_s in held_up) == 11


def test_keys_are_split_off_at_the_first_separator() -> None:
    assert split_key(b"N1:a:b", b":", None) == Message(b"N1", b"a:b")
    assert split_key(b"no key", b":", b"all") == Message(b"all", b"no key")
    assert split_key(b"a:b", None, b"k") == Message(b"k", b"a:b")


def test_generated_messages_are_numbered_and_have_their_size() -> None:
    first, second = (message for message, _ in zip(generate(100, b"k"), range(2), strict=False))
    assert (len(first.value), first.value[:2], second.value[:2]) == (100, b"0 ", b"1 ")
    assert len(next(generate(5000, None)).value) == 5000
    assert next(generate(0, None)).value == b"0"


async def test_lines_come_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\r\ntwo\n\nlast")
    with path.open("rb") as file:
        assert [line async for lines in read_lines(file.fileno()) for line in lines] == [b"one", b"two", b"", b"last"]
    read_end, write_end = os.pipe()
    try:
        lines = read_lines(read_end)
        os.write(write_end, b"first\nsec")
        assert await anext(lines) == [b"first"]
        os.write(write_end, b"ond\n")
        assert await anext(lines) == [b"second"]
        os.close(write_end)
        assert [line async for line in lines] == []
    finally:
        os.close(read_end)


NO_TLS = TlsOptions()


def test_bootstrap_is_what_is_said_or_the_local_cluster_or_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(None, NO_TLS)[:2] == (BOOTSTRAP_DEFAULT, None)
    assert resolve("a:1, b:2", NO_TLS) == (("a:1", "b:2"), None, "")
    for wrong in ("a", "a:", ":7", "a:0", "a:99999", " , "):
        with pytest.raises(click.UsageError):
            resolve(wrong, NO_TLS)
    directory = tmp_path / ".local" / "cluster"
    directory.mkdir(parents=True)
    (directory / "cluster.json").write_text(json.dumps({"bootstrap": ["127.0.0.2:7000"]}))
    (directory / "lock").touch()
    assert local_cluster(directory) == ((), None)  # its runner has ended
    with (directory / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert resolve(None, NO_TLS) == (("127.0.0.2:7000",), None, "")
        below = tmp_path / "src" / "deep"
        below.mkdir(parents=True)
        monkeypatch.chdir(below)
        assert resolve(None, NO_TLS) == (("127.0.0.2:7000",), None, ""), "it runs below a directory above"
        monkeypatch.setattr("os.geteuid", lambda: os.stat(tmp_path).st_uid + 1)
        assert resolve(None, NO_TLS)[0] == BOOTSTRAP_DEFAULT, "that of another user is not ours"
        monkeypatch.setenv("SERIATIM_CLUSTER_DIR", str(directory))
        assert resolve(None, NO_TLS)[0] == ("127.0.0.2:7000",)


def test_the_default_address_says_where_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"no local cluster runs in {tmp_path}/.local/cluster" in resolve(None, NO_TLS)[2]
    monkeypatch.setenv("SERIATIM_CLUSTER_DIR", "elsewhere")
    assert "no local cluster runs in elsewhere, so 127.0.0.1:7400 was asked" in resolve(None, NO_TLS)[2]


def test_tls_is_what_is_said_or_that_of_the_local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = TlsOptions("ca", "cert", "key", "name")
    assert resolve(None, mine)[1] == resolve("a:1", mine)[1] == mine
    for wrong in (TlsOptions(cert="c", key="k"), TlsOptions(server_name="n"), TlsOptions("ca", key="k")):
        with pytest.raises(click.UsageError, match="--tls-"):
            resolve("a:1", wrong)
    directory = tmp_path / ".local" / "cluster"
    directory.mkdir(parents=True)
    (directory / "cluster.json").write_text(json.dumps({"bootstrap": ["127.0.0.2:7000"], "tls_directory": "/d/tls"}))
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = TlsOptions("/d/tls/ca.crt", "/d/tls/client.crt", "/d/tls/client.key")
        assert resolve(None, NO_TLS)[:2] == (("127.0.0.2:7000",), found)
        assert resolve(None, mine)[:2] == (("127.0.0.2:7000",), mine)
        assert resolve("a:1", NO_TLS)[:2] == (("a:1",), None)  # another cluster is meant


def test_what_retention_dropped_is_said_of_a_segment() -> None:
    stub = replace(sealed(3, "g0", 500), start=500)
    cut = segment_of(4, "g1", ("g1-0", "g1-1"), "OPEN", None, start=1_900)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(draw_chain(chain_of("t", 0, 7, ("g0",), (stub, cut)), width=80))
    text = console.export_text()
    assert "dropped" in text
    assert "from 1,900" in text


def test_in_a_pipe_no_line_of_a_table_is_wrapped_or_cut_or_ends_with_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("key", overflow="fold")
    table.add_column("last error")
    table.add_row("k" * 700, "no such article " * 30)
    table.add_row("short", "late")
    Settings((), as_json=False).show(table)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1] == "k" * 700 + "  " + ("no such article " * 30).rstrip()
    assert lines[2].split() == ["short", "late"]
    assert not [line for line in lines if line != line.rstrip()]
