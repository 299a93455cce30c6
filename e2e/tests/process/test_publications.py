"""Publications on real brokers: all rows or none, once and in order, whichever process is killed, and whenever."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import re
import shutil
import sys
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from seriatim import Chunk, Client, WriterDescription, partition_of_key
from seriatim_api import errors
from seriatim_local import LocalCluster

from e2e.rebuilding import rebuild

from .publishing_program import rows_of
from .traffic import PROGRESS_DEADLINE_S

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

PARTITIONS = 8
ROWS = 1000


class Program:
    """A run of the program."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def says(self, word: str) -> str:
        """Wait for a line that begins with `word`, and return it."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PROGRESS_DEADLINE_S):
            while line := (await self._process.stdout.readline()).decode().strip():
                if line.startswith(word):
                    return line
        raise AssertionError(f"the program ended before it said {word!r}")

    def go_on(self) -> None:
        """Let the program publish."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    async def kill(self) -> None:
        """Kill the program."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def program(cluster: LocalCluster, topic: str, *options: str) -> AsyncIterator[Program]:
    """Start the program. Kill it at the end if it has not ended."""
    arguments = [part for address in cluster.bootstrap for part in ("--bootstrap", address)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "e2e.tests.process.publishing_program", "--topic", topic, *arguments, *options,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    run = Program(process)
    try:
        yield run
    finally:
        await run.kill()


async def run_program(cluster: LocalCluster, topic: str, *options: str) -> str:
    """Run the program to its end. Return its last line."""
    async with program(cluster, topic, *options) as run:
        await run.says("staged")
        run.go_on()
        return await run.says("")


async def stored(client: Client, topic: str) -> list[list[bytes]]:
    """Return all values of each partition, in their order."""
    found: list[list[bytes]] = []
    for partition in range(PARTITIONS):
        async with client.read_range(topic, partition) as reader:
            found.append([message.value async for message in reader])
    return found


async def stored_again(client: Client, topic: str) -> list[list[bytes]]:
    """As `stored`, of brokers that have just been started again: at first they may not know where a partition ends."""
    async with asyncio.timeout(PROGRESS_DEADLINE_S):
        while True:
            with contextlib.suppress(errors.PositionUnknownError):
                return await stored(client, topic)


def expected(*labels: str, count: int = ROWS) -> list[list[bytes]]:
    """Return the rows of these publications by partition, one publication after another."""
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for label in labels:
        for value, key in zip(*rows_of(label, count), strict=True):
            found[partition_of_key(key, PARTITIONS)].append(value)
    return found


async def until_done(client: Client, topic: str, sequence: int = 1) -> WriterDescription:
    """Wait until the writer's publication is done."""
    async with asyncio.timeout(PROGRESS_DEADLINE_S):
        while True:
            try:
                known = await client.admin().describe_writer(topic, "nightly")
            except (errors.UnavailableError, errors.UnknownWriterError):
                known = None
            if known is not None and (known.state, known.sequence) == ("DONE", sequence):
                return known
            await asyncio.sleep(0.1)


async def test_a_plain_program_publishes_all_rows_once_however_often_it_runs(cluster: LocalCluster) -> None:
    async with Client.connect(cluster.bootstrap) as client:
        admin = client.admin()
        await admin.create_topic("pub-plain", PARTITIONS)
        assert await run_program(cluster, "pub-plain") == f"published {ROWS} now"
        assert await stored(client, "pub-plain") == expected("row")
        assert await run_program(cluster, "pub-plain") == f"published {ROWS} again"
        assert await run_program(cluster, "pub-plain", "--label", "other") == "refused PublicationDiffersError"
        assert await run_program(cluster, "pub-plain", "--sequence", "0") == "refused SequencePassedError"
        assert await run_program(cluster, "pub-plain", "--sequence", "2", "--label", "next") == f"published {ROWS} now"
        assert await stored(client, "pub-plain") == expected("row", "next")

        (writer,) = await admin.list_writers("pub-plain")
        assert (writer.writer, writer.state, writer.sequence, writer.rows) == ("nightly", "DONE", 2, ROWS)
        assert [topic.name for topic in await admin.list_topics() if topic.name.startswith("_")] == []
        with pytest.raises(errors.IllegalNameError):
            await client.producer("_stage")
        # Operators see the stage topic. If they declare a gap in it, a publication that waits for lost rows continues.
        assert (await admin.describe_topic("_stage")).topic.name == "_stage"
        chain = await admin.describe_chain("_stage", 0)
        with pytest.raises(errors.PreconditionError, match="no certificate says"):
            await admin.declare_gap("_stage", 0, chain.segments[-1].no, "me")
        await admin.delete_writer("pub-plain", "nightly")
        assert await admin.list_writers("pub-plain") == []
        await admin.delete_topic("pub-plain")


async def test_a_program_killed_before_the_decision_leaves_nothing(cluster: LocalCluster) -> None:
    async with Client.connect(cluster.bootstrap) as client:
        await client.admin().create_topic("pub-before", PARTITIONS)
        async with program(cluster, "pub-before") as run:
            await run.says("staged")
            await run.kill()
        assert await stored(client, "pub-before") == expected()
        assert (await client.admin().describe_writer("pub-before", "nightly")).state == "NEW"
        assert await run_program(cluster, "pub-before") == f"published {ROWS} now"
        assert await stored(client, "pub-before") == expected("row")
        await client.admin().delete_topic("pub-before")


async def test_a_program_killed_at_any_moment_leaves_all_rows_or_none(cluster: LocalCluster) -> None:
    """The program is killed before, during and after the decision.

    The same program, started again, learns and reports the state.
    """
    async with Client.connect(cluster.bootstrap) as client:
        admin = client.admin()
        await admin.create_topic("pub-moments", PARTITIONS)
        labels: list[str] = []
        finished = 0
        for sequence, moment_s in enumerate((0.0, 0.03, 0.06, 0.12, 0.25), 1):
            label = f"m{sequence}"
            options = ("--sequence", str(sequence), "--label", label)
            async with program(cluster, "pub-moments", *options) as run:
                await run.says("staged")
                run.go_on()
                await asyncio.sleep(moment_s)
                await run.kill()
            known = await admin.describe_writer("pub-moments", "nightly")
            is_decided = known.sequence == sequence
            if is_decided:
                await until_done(client, "pub-moments", sequence)
                finished += 1
            rows = await stored(client, "pub-moments")
            assert rows in (expected(*labels), expected(*labels, label))
            assert not is_decided or rows == expected(*labels, label)
            labels.append(label)
            assert (await run_program(cluster, "pub-moments", *options)).startswith(f"published {ROWS}")
            assert await stored(client, "pub-moments") == expected(*labels)
        assert finished < len(labels), "some are killed before the decision"
        await admin.delete_topic("pub-moments")


async def test_brokers_are_killed_while_they_carry_out(cluster: LocalCluster) -> None:
    async with Client.connect(cluster.bootstrap) as client:
        admin = client.admin()
        await admin.create_topic("pub-killed", PARTITIONS)
        rounds = 6
        async with client.writer("pub-killed", "nightly") as writer:
            assert await writer.open() is None
            for sequence in range(rounds):
                chunk = await staged_again(client, "pub-killed", f"r{sequence}")
                publishing = asyncio.create_task(writer.publish(sequence, [chunk]), name="publish")
                victim = cluster.broker_names[sequence % len(cluster.broker_names)]
                await asyncio.sleep(0)
                await cluster.kill(victim)
                await cluster.start_again(victim)
                try:
                    await publishing
                except errors.StagedDataGoneError:  # no broker that has the rows answered: stage them again
                    chunk = await staged_again(client, "pub-killed", f"r{sequence}")
                    await writer.publish(sequence, [chunk])
        assert await stored(client, "pub-killed") == expected(*(f"r{number}" for number in range(rounds)))
        await admin.delete_topic("pub-killed")


async def adopted_bytes(cluster: LocalCluster, broker: str) -> int:
    """Return how many bytes a broker has adopted since it started, by its own figures."""
    url = f"http://{cluster.plan.broker(broker).admin}/metrics"
    answer = await asyncio.to_thread(urllib.request.urlopen, url, timeout=PROGRESS_DEADLINE_S)
    text = answer.read().decode()
    (found,) = re.findall(r"^seriatim_adopted_bytes_total(?:{.*})? (\S+)", text, re.MULTILINE)
    return int(float(found))


async def test_members_adopt_what_is_staged_and_keep_it(tmp_path: Path) -> None:
    """Each disk has a body once, and has it after both members were killed."""
    options = ("--set", "head_cache_size_bytes_max=1")
    async with (
        LocalCluster(tmp_path, groups=1, members=2, proxy=False, broker_options=options) as cluster,
        Client.connect(cluster.bootstrap) as client,
    ):
        await client.admin().create_topic("adopted", PARTITIONS)
        async with client.writer("adopted", "nightly") as writer:
            await writer.open()
            values = [b"%d" % number + bytes(20_000) for number in range(200)]
            for sequence in range(2):
                chunks = [await writer.stage(values, partition=partition) for partition in range(PARTITIONS)]
                await writer.publish(sequence, chunks)
        wanted = [2 * values] * PARTITIONS
        assert await stored(client, "adopted") == wanted
        size_bytes = sum(len(value) for values in wanted for value in values)
        for broker in cluster.broker_names:
            assert await adopted_bytes(cluster, broker) > size_bytes
        await cluster.kill("brokers")
        await cluster.start_again("brokers")
        await cluster.wait_ready()
        assert await stored_again(client, "adopted") == wanted


async def staged_again(client: Client, topic: str, label: str) -> Chunk:
    """Stage rows by a writer that is not opened, as a task in another process does.

    The writer is pickled in between.
    """
    values, keys = rows_of(label, ROWS)
    async with client.writer(topic, "nightly") as writer:
        chunk = pickle.loads(pickle.dumps(await writer.stage(values, keys)))
    assert isinstance(chunk, Chunk)
    return chunk


async def test_only_who_opened_the_writer_last_publishes(cluster: LocalCluster) -> None:
    async with Client.connect(cluster.bootstrap) as client:
        await client.admin().create_topic("pub-fence", PARTITIONS)
        async with client.writer("pub-fence", "nightly") as zombie, client.writer("pub-fence", "nightly") as other:
            await zombie.open()
            await other.open()
            chunk = await other.stage([b"x"], partition=3)
            with pytest.raises(errors.WriterFencedError):
                await zombie.publish(1, [chunk])
            published = await other.publish(1, [chunk])
            assert [part.rows for part in published.parts] == [1]
            assert await stored(client, "pub-fence") == _only(3, b"x")
        await client.admin().delete_topic("pub-fence")


def _only(partition: int, *values: bytes) -> Sequence[Sequence[bytes]]:
    return [list(values) if number == partition else [] for number in range(PARTITIONS)]


async def test_bad_input_is_refused_with_a_word(cluster: LocalCluster) -> None:
    async with Client.connect(cluster.bootstrap) as client:
        admin = client.admin()
        await admin.create_topic("pub-bad", PARTITIONS)
        async with client.writer("pub-bad", "nightly") as writer:
            with pytest.raises(errors.BadRequestError, match="no key and no partition"):
                await writer.stage([b"x"])
            with pytest.raises(errors.PartitionOutOfRangeError):
                await writer.stage([b"x"], partition=PARTITIONS)
            with pytest.raises(errors.MessageTooLargeError):
                await writer.stage([bytes(2 << 20)], partition=0)
            chunk = await writer.stage([b"x"], partition=0)
            with pytest.raises(errors.BadRequestError, match="twice"):
                await writer.publish(1, [chunk, chunk])
            with pytest.raises(errors.BadRequestError, match="sequence"):
                await writer.publish(1 << 32, [chunk])
            assert (await writer.publish(1, [])).rows == 0
            assert await admin.list_writers("pub-bad") == []
            await admin.update_topic("pub-bad", PARTITIONS + 1)
            later = await writer.stage([b"y"], partition=0)
            with pytest.raises(errors.BadRequestError, match="grew"):
                await writer.publish(1, [chunk, later])
            await admin.delete_topic("pub-bad")
            await admin.create_topic("pub-bad", PARTITIONS)
            with pytest.raises(errors.PreconditionError, match="made again"):
                await writer.publish(1, [chunk])
        with pytest.raises(errors.IllegalNameError):
            await client.writer("pub-bad", "no/name")
        await admin.delete_topic("pub-bad")


@pytest.mark.faults
async def test_publications_go_on_after_the_coordinator_is_rebuilt(tmp_path: Path) -> None:
    """The program publishes, all that the coordinator knows is lost and rebuilt, and the program publishes on."""
    async with (
        LocalCluster(tmp_path, groups=2, members=2, proxy=False) as cluster,
        Client.connect(cluster.bootstrap) as client,
    ):
        await client.admin().create_topic("rebuilt", PARTITIONS)
        for sequence in (1, 2):
            assert await run_program(cluster, "rebuilt", "--sequence", f"{sequence}", "--label", f"p{sequence}") == (
                f"published {ROWS} now"
            )
        await cluster.kill("coordinator")
        shutil.rmtree(cluster.data_directory("coordinator"))
        await cluster.start_again("coordinator")
        async with asyncio.timeout(PROGRESS_DEADLINE_S):
            while True:
                said = await rebuild(cluster)
                if "would write: topic rebuilt" in said:
                    break
                await asyncio.sleep(0.2)  # there is nothing to wait on but the command itself
        assert "would write: the last publications of 1 writers of topic rebuilt" in said
        assert "cannot be known: writers: whether all partitions have the last publication" in said
        assert "records written" in await rebuild(cluster, "--yes")
        await cluster.wait_ready()
        async with program(cluster, "rebuilt", "--sequence", "2", "--label", "p2") as run:
            assert await run.says("opened") == "opened 1", "it is told to publish 2 again"
            await run.says("staged")
            run.go_on()
            assert await run.says("") == f"published {ROWS} now"
        assert await run_program(cluster, "rebuilt", "--sequence", "3", "--label", "p3") == f"published {ROWS} now"
        assert (
            await run_program(cluster, "rebuilt", "--sequence", "1", "--label", "p1") == "refused SequencePassedError"
        )
        async with Client.connect(cluster.bootstrap) as later:
            assert await stored_again(later, "rebuilt") == expected("p1", "p2", "p3")
