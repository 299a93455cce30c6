"""Histories on disk: what a kill leaves is accepted and counted, other garbage is refused by file and line."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from seriatim.history import HistoryFormatError, HistoryWriter, check

HEADER = '{"k":"history","version":1,"process":"p","clock":"monotonic"}\n'
SEND = '{"k":"send","at":1.0,"p":"p1","t":"t","q":0,"s":0,"m":1}\n'


def write_clean(path: Path, count: int = 10) -> None:
    with HistoryWriter(path, "all") as history:
        history.sends(range(count), producer="p1", topic="t", partition=0, sequence=0)
        history.outcomes(range(count), "ok", offset=1 << 40)
        history.deliveries(range(count), group="g", consumer="c", topic="t", partition=0, offset=1 << 40)
        history.flush()
        history.ack(group="g", topic="t", partition=0, offset=f"1:{count - 1}")
        history.end("g")


def test_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    write_clean(path)
    report = check(path)
    assert report.ok
    assert report.counts["sent"] == report.counts["delivered"] == 10
    assert report.counts["cut_runs"] == report.counts["torn_lines"] == 0
    assert all(len(line) < 120 for line in path.read_text().splitlines())
    json.dumps(report.to_dict())


def test_several_files_in_any_order(tmp_path: Path) -> None:
    producer, consumer = tmp_path / "producer.jsonl", tmp_path / "consumer.jsonl"
    with HistoryWriter(producer, "producer") as sent, HistoryWriter(consumer, "consumer") as came:
        sent.sends([7, "x", 9], producer="p1", topic="t", partition=2, sequence=0)
        sent.outcomes([7, "x", 9], "ok", offset="3:4")
        came.deliveries([7, "x"], group="g", consumer="c", topic="t", partition=2, offset="3:4")
        came.end()
    for paths in ([producer, consumer], [consumer, producer]):
        report = check(paths)
        assert report.counts["lost"] == 1
        (finding,) = report.findings
        assert finding.message == 9
        assert finding.events[0].source == str(producer)
        assert finding.events[0].line == 2
        assert finding.events[0].event["sequence"] == 2
        assert finding.events[1].event["offset"] == "3:6"


def test_a_standby_in_another_process_is_merged_by_time(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("producer", "first", "second")]
    with HistoryWriter(files[0], "producer") as sent:
        sent.sends(range(6), producer="p1", topic="t", partition=0, sequence=0, at=1.0)
        sent.outcomes(range(6), "ok", offset="1:0", at=2.0)
    with HistoryWriter(files[1], "first") as first, HistoryWriter(files[2], "second") as second:
        where = {"group": "g", "topic": "t", "partition": 0}
        first.deliveries([0, 1, 2], consumer="c1", offset="1:0", at=3.0, **where)  # type: ignore[arg-type]
        second.deliveries([1, 2, 3], consumer="c2", offset="1:1", at=4.0, maybe_repeated=True, **where)  # type: ignore[arg-type]
        second.deliveries([4, 5], consumer="c2", offset="1:4", at=5.0, **where)  # type: ignore[arg-type]
        second.end()
    for order in ([0, 1, 2], [2, 1, 0]):
        report = check([files[n] for n in order])
        assert report.ok, report.findings
        assert report.counts["redelivered"] == 2


def test_a_torn_last_line_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl"
    path.write_text(HEADER + SEND + SEND[:30])
    report = check(path)
    assert report.counts["torn_lines"] == report.counts["cut_runs"] == 1
    assert report.counts["sent"] == 1
    assert report.counts["stuck"] == 0  # its process was killed: no program was left that could learn an outcome


def test_a_killed_process_that_was_started_again(tmp_path: Path) -> None:
    path = tmp_path / "again.jsonl"
    path.write_text(HEADER + SEND + SEND[:30])
    with HistoryWriter(path, "p") as history:
        history.send(2, producer="p1", topic="t", partition=0, sequence=1)
        history.outcome(2, "ok", offset="1:1")
    report = check(path)
    assert report.counts["sent"] == 2
    assert report.counts["torn_lines"] == report.counts["cut_runs"] == 1
    assert report.ok


def test_a_send_lost_with_its_recorder_is_a_note(tmp_path: Path) -> None:
    producer, consumer = tmp_path / "producer", tmp_path / "consumer"
    producer.write_text(HEADER)
    with HistoryWriter(consumer, "consumer") as came:
        came.deliver(1, group="g", consumer="c", topic="t", partition=0, offset="1:0")
        came.end()
    report = check([producer, consumer])
    assert report.ok
    assert report.counts["unsent_in_cut_runs"] == 1
    assert check(consumer).counts["unsent"] == 1


def test_a_writer_left_by_an_error_does_not_claim_to_have_closed(tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    with pytest.raises(ZeroDivisionError), HistoryWriter(path, "p"):
        _ = 1 / 0
    assert check(path).counts["cut_runs"] == 1


def test_the_same_file_twice(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    write_clean(path)
    with pytest.raises(HistoryFormatError, match="given twice"):
        check([path, path])


@pytest.mark.slow
def test_the_demo_s_size_is_judged_in_time(tmp_path: Path) -> None:
    """1.3 million messages of six partitions, in batches of 200: under 30 s (4 s on an idle machine)."""
    path, size, batch = tmp_path / "large.jsonl", 1_300_000, 200
    with HistoryWriter(path, "all") as history:
        for n, first in enumerate(range(0, size, batch)):
            partition, sequence = n % 6, n // 6 * batch
            ids, offset = range(first, first + batch), f"1:{sequence}"
            history.sends(ids, producer="p1", topic="t", partition=partition, sequence=sequence)
            history.outcomes(ids, "ok", offset=offset)
            history.deliveries(ids, group="g", consumer="c", topic="t", partition=partition, offset=offset)
        history.end("g")
    started = time.monotonic()
    report = check(path)
    assert report.ok
    assert report.counts["delivered"] == size
    assert time.monotonic() - started < 30


BAD_LINES = [
    "garbage",
    "[]",
    "{}",
    '{"k":"nothing","at":1}',
    '{"k":["send"],"at":1}',
    '{"k":"send"}',
    '{"k":"send","at":"1"}',
    '{"k":"send","at":NaN}',
    '{"k":"send","at":true}',
    '{"k":"send","at":1,"p":"p1","t":"t","q":0,"s":0}',
    '{"k":"send","at":1,"p":"p1","t":"t","q":0,"s":0,"m":1.5}',
    '{"k":"send","at":1,"p":"p1","t":"t","q":0,"s":0,"m":[]}',
    '{"k":"send","at":1,"p":"p1","t":"t","q":0,"s":0,"m":[1,1]}',
    '{"k":"send","at":1,"p":"p1","t":"t","q":0,"s":0,"m":[null]}',
    '{"k":"send","at":1,"p":"p1","t":"t","q":0,"s":0,"m":"x","n":2}',
    '{"k":"send","at":1,"p":"p1","t":"t","q":0,"s":0,"m":5,"n":99999999999}',
    '{"k":"send","at":1,"p":"p1","t":"t","q":-1,"s":0,"m":5}',
    '{"k":"send","at":1,"p":"p1","t":"t","q":0,"s":9999999999,"m":5}',
    '{"k":"send","at":1,"p":"","t":"t","q":0,"s":0,"m":5}',
    '{"k":"send","at":1,"p":"p1","t":"t","q":0,"s":1,"m":1}',
    '{"k":"outcome","at":1,"m":1,"x":"fine"}',
    '{"k":"outcome","at":1,"m":1,"x":{}}',
    '{"k":"outcome","at":1,"m":1,"x":"ok","o":"7"}',
    '{"k":"outcome","at":1,"m":1,"x":"ok","o":"8388608:0"}',
    '{"k":"deliver","at":1,"g":"g","c":"c","t":"t","q":0,"o":5,"m":1}',
    '{"k":"deliver","at":1,"g":"g","c":"c","t":"t","q":0,"o":"1:0","m":1,"a":0}',
    '{"k":"deliver","at":1,"g":"g","t":"t","q":0,"o":"1:0","m":1}',
    '{"k":"ack","at":1,"g":"g","t":"t","q":"0","o":"1:0"}',
    '{"k":"gap","at":1,"t":"t","q":0,"o":"1:5","z":"1:4"}',
    '{"k":"fault","at":1,"name":"kill"}',
    '{"k":"end","at":1}',
    '{"k":"history","version":2,"process":"p"}',
    "[" * 100_000,
]


@pytest.mark.parametrize("bad", BAD_LINES, ids=lambda line: line[:60])
def test_garbage_is_refused_by_file_and_line(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(HEADER + SEND + bad + "\n" + SEND.replace('"m":1', '"m":2'))
    with pytest.raises(HistoryFormatError) as caught:
        check(path)
    assert (caught.value.source, caught.value.line) == (str(path), 3)
    assert caught.value.reason


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", 0),
        (SEND.encode(), 1),
        (b"\xff\xfe\n", 1),
        (HEADER.encode() + b"\x00\x01\n", 2),
        (b"\n" + SEND.encode(), 1),
    ],
)
def test_files_that_are_no_history(tmp_path: Path, content: bytes, line: int) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(HistoryFormatError) as caught:
        check(path)
    assert caught.value.line == line


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check(tmp_path / "none")
