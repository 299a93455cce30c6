"""`replay` and `mirror` between real topics."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from seriatim import Message, partition_of_key, sync
from seriatim_api.ids import format_offset

from .conftest import Brokers
from .filling import Filled
from .test_pipelines import run
from .test_sink import content, found_with_nulls, sent_with_nulls, target

WAIT_S = 150.0

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.slow]


def messages(client: sync.Client, topic: str, partition: int) -> list[Message]:
    with client.read_range(topic, partition) as reader:
        return list(reader)


def test_a_topic_is_replayed_although_drivers_and_a_broker_are_killed(
    client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    """Drivers are killed at random moments of their work; the second topic is the first."""
    topic = Filled(client, brokers.bootstrap, "letters", 2)
    topic.send([9_000, 6_000], size=300)
    target(client, brokers, "letters-again")
    arguments = (
        "replay", "--bootstrap", brokers.bootstrap, "--topic", "letters", "--to-topic", "letters-again", "--id",
        "again", "--checkpoint", str(tmp_path / "checkpoint"), "--rows-per-publication", "500", "--to-partitions",
        "same",
    )  # fmt: skip
    chance = random.Random(5)
    admin = client.admin()

    def sequence() -> int:
        found = [writer.sequence for writer in admin.list_writers("letters-again")]
        return -1 if not found or found[0] is None else found[0]

    for strike in range(2):
        before = sequence()
        submit = {"PYSPARK_SUBMIT_ARGS": "--conf spark.python.authenticate.socketTimeout=60s pyspark-shell"}
        driver = subprocess.Popen([sys.executable, "-m", "seriatim_spark", *arguments], env={**os.environ, **submit})
        try:
            until = time.monotonic() + WAIT_S
            while sequence() < before + 2 + strike:
                assert driver.poll() is None
                assert time.monotonic() < until
                time.sleep(0.02)
            if strike:
                brokers.kill(admin.describe_chain("letters-again", 0).segments[-1].members[0])
            time.sleep(chance.uniform(0, 0.4))  # anywhere in a micro-batch
        finally:
            driver.kill()
            driver.wait()
    brokers.whole()
    assert sequence() < 29, "drivers were killed before they were done"
    run(*arguments)
    assert content(client, "letters-again") == topic.values
    run(*arguments)
    assert content(client, "letters-again") == topic.values
    last = messages(client, "letters-again", 1)[-1]
    assert last.headers is not None
    assert last.headers["replay-of"] == f"letters/1/{format_offset((1 << 40) + 5_999)}".encode()


def test_a_replay_of_a_topic_goes_on_and_not_into_itself(client: sync.Client, brokers: Brokers, tmp_path: Path) -> None:
    topic = Filled(client, brokers.bootstrap, "feeding", 1)
    topic.send([10])
    target(client, brokers, "grown")
    replay = ("replay", "--bootstrap", brokers.bootstrap, "--topic", "feeding", "--to-partitions", "same")
    once = (*replay, "--to-topic", "grown", "--id", "r", "--checkpoint", str(tmp_path / "c"))
    run(*once)
    topic.send([7])
    run(*once)
    assert sum(map(len, content(client, "grown").values())) == 17, "each once"
    itself = (*replay, "--to-topic", "feeding", "--id", "s", "--checkpoint", str(tmp_path / "s"))
    assert "is the topic that is read" in run(*itself, status=1)
    assert len(messages(client, "feeding", 0)) == 17


def test_an_archive_is_replayed_by_keys(client: sync.Client, brokers: Brokers, tmp_path: Path) -> None:
    topic = Filled(client, brokers.bootstrap, "_" + "o" * 248, 2)
    topic.send([1_000, 500], headers=True)
    reading = ("--bootstrap", brokers.bootstrap, "--topic", topic.name)
    archive = str(tmp_path / "archive")
    writing = ("archive", *reading, "--to", archive, "--checkpoint", str(tmp_path / "a"), "--once")
    run(*writing, "--file-rows", "300")
    target(client, brokers, "new", 3)
    replay = (
        "replay", "--archive", archive, "--to-bootstrap", brokers.bootstrap, "--to-topic", "new", "--id", "r1",
        "--checkpoint", str(tmp_path / "r"), "--rows-per-publication", "400",
    )  # fmt: skip
    assert "1,500 rows sent to new" in run(*replay)
    topic.send([100, 0])
    run(*writing, "--file-rows", "300")
    assert "0 rows sent to new" in run(*replay)
    sent: dict[bytes, list[tuple[int, bytes]]] = {}
    for partition in range(3):
        for message in messages(client, "new", partition):
            assert message.key is not None
            assert message.headers is not None
            assert partition == partition_of_key(message.key, 3)
            assert set(message.headers) == {"n", "replay-of"}
            _, number, _place = message.headers["replay-of"].decode().split("/")
            sent.setdefault(message.key, []).append((int(number), message.value))
    assert sum(map(len, sent.values())) == 1_500
    for found in sent.values():
        for number in (0, 1):
            values = [int(value) for source, value in found if source == number]
            assert values == sorted(values)
    other = (*replay[:-4], "--checkpoint", str(tmp_path / "other"))
    assert "does not know which" in run(*other, status=1)
    next((tmp_path / "archive").rglob("*000300--*.parquet")).unlink()
    stopped = (*replay[:8], "r2", "--checkpoint", str(tmp_path / "r2"))
    assert "is missing" in run(*stopped, status=1)
    assert sum(len(messages(client, "new", partition)) for partition in range(3)) == 1_500


def test_a_mirror_is_its_source_and_maps_its_offsets(client: sync.Client, brokers: Brokers, tmp_path: Path) -> None:
    topic = Filled(client, brokers.bootstrap, "__here", 2)
    topic.send([2_000, 1_000], headers=True)
    target(client, brokers, "there")
    mirror = (
        "mirror", "--bootstrap", brokers.bootstrap, "--topic", "__here", "--to-bootstrap", brokers.bootstrap,
        "--to-topic", "there", "--checkpoint", str(tmp_path / "checkpoint"), "--once",
    )  # fmt: skip
    offsets = ("--offsets", str(tmp_path / "map"))
    run(*mirror, *offsets, "-o", "maxRowsPerTrigger=1000")
    topic.switch()
    topic.send([70, 30], headers=True)
    run(*mirror, *offsets)
    assert content(client, "there") == topic.values
    entries = [json.loads(path.read_text()) for path in sorted((tmp_path / "map" / "entries").iterdir())]
    assert [entry["batch"] for entry in entries] == [0, 1, 2, 3]
    for entry in entries[:-1]:
        for partition in ("0", "1"):
            found = []
            for name, side in (("__here", "source"), ("there", "target")):
                with client.read_range(name, int(partition), entry[side][partition]) as reader:
                    found.append(next(iter(reader), None))
            assert found[0] is not None
            assert found[1] is not None
            assert (found[0].value, found[0].headers) == (found[1].value, found[1].headers)

    # The driver was killed after publishing: the micro-batch runs again, is there once, and is noted.
    for left in (tmp_path / "map" / "entries" / "000000000003.json", *tmp_path.glob("checkpoint/commits/*3*")):
        left.unlink()
    run(*mirror, *offsets)
    assert json.loads((tmp_path / "map" / "entries" / "000000000003.json").read_text()) == entries[-1]
    with client.producer("there") as producer:
        producer.send_many([b"other"], None, 1).result()
    for left in (tmp_path / "map" / "entries" / "000000000003.json", *tmp_path.glob("checkpoint/commits/*3*")):
        left.unlink()
    assert "has grown by 101 messages while 100 were sent" in run(*mirror, *offsets, status=1)
    (tmp_path / "map" / "entries" / "000000000003.json").write_text(json.dumps(entries[-1]))
    topic.send([5, 5])
    assert "has not written" in run(*mirror, *offsets, status=1)
    assert sum(map(len, content(client, "there").values())) == 3_101
    run(*mirror, "--shared")
    assert sum(map(len, content(client, "there").values())) == 3_111
    client.admin().create_topic("narrow", 1)
    narrow = [*mirror[:8], "narrow", "--checkpoint", str(tmp_path / "n"), "--once", "--shared"]
    assert "as many" in run(*narrow, status=1)


def test_copies_and_archives_keep_nulls_and_repeated_headers(
    client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    sent = sent_with_nulls(client, "old")
    reading = ("--bootstrap", brokers.bootstrap, "--topic", "old")
    archive = ("--to", str(tmp_path / "archive"), "--checkpoint", str(tmp_path / "a"))
    run("archive", *reading, *archive, "--once")
    run("audit", "--archive", str(tmp_path / "archive"), "--key-sequence", "n")
    for name, words in (
        ("mirrored", ("mirror", *reading, "--once", "--shared")),
        ("replayed", ("replay", *reading, "--id", "r")),
        ("restored", ("replay", "--archive", str(tmp_path / "archive"), "--id", "s")),
    ):
        target(client, brokers, name, 1)
        writing = ("--to-bootstrap", brokers.bootstrap, "--to-topic", name, "--checkpoint", str(tmp_path / name))
        run(*words, *writing)
        found = found_with_nulls(client, name)
        if words[0] == "replay":
            assert all(headers.pop()[0] == "replay-of" for _, headers in found)
        assert found == sent
