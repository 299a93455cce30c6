"""Clients in several event loops, threads and processes: they work, or one clear error comes at once.

The programs run in processes of their own, because a fork of the test's process would copy the fake broker's threads.
"""

from __future__ import annotations

import re
import subprocess
import sys

from .test_public import fake_in_a_thread

BEGINNING = """
import asyncio, multiprocessing, os, sys, threading
from seriatim import Client, sync
from seriatim_api.errors import PreconditionError

ADDRESS = sys.argv[1]

async def send(producer):
    return await (await producer.send(b"m", partition=0))

async def once():
    async with Client.connect(ADDRESS) as client, client.producer("t") as producer:
        await send(producer)
    sys.stdout.write("sent" + os.linesep)

async def read():
    async with Client.connect(ADDRESS) as client, client.consumer("t", "g") as consumer:
        print(len(await consumer.fetch(1)))

def in_child(function):
    pid = os.fork()
    if not pid:
        try:
            function()
        except PreconditionError as exc:
            print(exc.message)
        except BaseException as exc:
            print(repr(exc))
        finally:
            sys.stdout.flush()
            os._exit(0)
    print("exit", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

GRPC_CLOSES = re.compile(
    r"^Exception in callback .*\nhandle: <Handle cancelled>\n(?:Traceback.*\n(?: .*\n)*)OSError: \[Errno 9\] .*\n", re.M
)
"""What gRPC prints if one thread frees the last channel of the process, and so closes gRPC's socket, while the event
loop of another thread, whose channels are closed, just begins to read from it. Nothing is lost by it, and keeping that
socket open would keep 2.4 KB for each event loop that has ended, and gRPC's thread, with which a process cannot fork.
"""


def output_of(program: str) -> list[str]:
    """What the program printed, to its error output too."""
    with fake_in_a_thread() as cluster:
        cluster.create_topic("t", 1)
        cluster.create_topic("u", 1)
        # From Python 3.12 on, a fork in a process with threads warns. What happens then is what these tests are about.
        quiet = ["-W", "ignore:This process:DeprecationWarning"]
        command = [sys.executable, "-u", *quiet, "-c", BEGINNING + program, cluster.brokers[0].address]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stdout
    return GRPC_CLOSES.sub("", done.stdout).splitlines()


def test_event_loops_that_follow_one_another_each_have_a_client() -> None:
    assert output_of("for _ in range(3): asyncio.run(once()); asyncio.run(read())") == ["sent", "1"] * 3


def test_event_loops_in_threads_each_have_a_client() -> None:
    program = """
async def often():
    async with Client.connect(ADDRESS) as client, client.producer("t") as producer:
        for _ in range(100):
            await send(producer)
    sys.stdout.write("sent" + os.linesep)
threads = [threading.Thread(target=asyncio.run, args=(often(),)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    assert output_of(program) == ["sent"] * 4


def test_synchronous_clients_in_turn_print_nothing_of_closed_event_loops() -> None:
    program = """
import logging, socket, time
logging.getLogger("seriatim").addHandler(logging.NullHandler())
from seriatim_api.errors import UnavailableError
kept = socket.socket()
kept.bind(("127.0.0.1", 0))  # no program listens there
nobody = "127.0.0.1:%d" % kept.getsockname()[1]
with sync.Client.connect(ADDRESS) as other:
    for _ in range(2):
        try:
            with sync.Client.connect(nobody) as client:
                client.offsets("t", timeout_s=0.3)
        except UnavailableError as exc:
            print("unavailable")
    with other.producer("t") as producer:
        producer.send(b"m").result()  # what gRPC has to report comes at last here
    time.sleep(0.2)
print(sum(thread.name == "seriatim client" for thread in threading.enumerate()), "threads")
"""
    assert output_of(program) == ["unavailable"] * 2 + ["2 threads"]


ELSEWHERE = "the client was connected in another event loop: use it there"


def test_another_event_loop_is_refused_at_once() -> None:
    program = """
async def later(function):
    function()

async def main():
    async with (
        Client.connect(ADDRESS) as client,
        client.producer("t") as producer,
        client.consumer("t", "e") as consumer,
        client.consumer("u", "k", mode="key_ordered") as keyed,
    ):
        await send(producer)
        calls = {
            "send": lambda: producer.send(b""),
            "send_many": lambda: producer.send_many([b""]),
            "flush": producer.flush,
            "close of the producer": producer.close,
            "fetch": lambda: consumer.fetch(1),
            "ack_all": consumer.ack_all,
            "close of the consumer": consumer.close,
            "receive": lambda: keyed.receive(1),
            "run": lambda: keyed.run(print),
            "close of the keyed consumer": keyed.close,
            "iteration": lambda: anext(aiter(keyed)),
            "admin": client.admin().list_topics,
            "question": lambda: client.offsets("t"),
            "close": client.close,
        }
        async def elsewhere(call):
            async with asyncio.timeout(5):
                await call()
        for name, call in calls.items():
            try:
                await asyncio.to_thread(asyncio.run, elsewhere(call))
            except PreconditionError as exc:
                print(name, exc.message)
            else:
                print(name, "did not raise")
        await send(producer)
asyncio.run(main())
"""
    lines = output_of(program)
    assert len(lines) == 14
    assert [line for line in lines if "the client was connected in another event loop: use it there" not in line] == []


def test_a_forked_process_connects_if_no_client_was_open() -> None:
    assert output_of(
        """
asyncio.run(once())
asyncio.run(read())
in_child(lambda: asyncio.run(once()))
asyncio.run(once())
in_child(lambda: sync.Client.connect(ADDRESS).close())
"""
    ) == ["sent", "1", "sent", "exit 0", "sent", "exit 0"]


def test_a_forked_process_is_told_to_connect_after_the_fork() -> None:
    used, _, connected, _, number = output_of(
        """
client = sync.Client.connect(ADDRESS)
producer = client.producer("t")
producer.send(b"m").result(5)
in_child(lambda: producer.send(b"m"))
in_child(lambda: sync.Client.connect(ADDRESS))
print(producer.send(b"m").result(5).partition)
client.close()
"""
    )
    assert "the client was connected in process" in used
    assert "connect after the fork" in used
    assert "gRPC does not work in it: connect after the fork" in connected
    assert number == "0"


def test_processes_that_use_no_client_may_be_forked_while_one_is_open() -> None:
    program = """
from concurrent.futures import ProcessPoolExecutor
with sync.Client.connect(ADDRESS) as client, client.producer("t") as producer:
    producer.send(b"m").result(5)
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        print(sum(pool.map(abs, range(-9, 0))))
    producer.send(b"m").result(5)
"""
    assert output_of(program) == ["45"]


def test_a_client_without_a_block_is_closed_by_its_program() -> None:
    program = """
async def main():
    client = await Client.connect(ADDRESS)
    producer = await client.producer("t", linger_ms=10_000)
    delivery = await producer.send(b"m")
    await client.close()
    print((await delivery).partition)
    await client.close()
    for call in (client.producer("t"), client.admin().list_topics()):
        try:
            await call
        except PreconditionError as exc:
            print(exc.message)
asyncio.run(main())
client = sync.Client.connect(ADDRESS)
admin = client.admin()
client.close()
client.close()
try:
    admin.list_topics()
except PreconditionError as exc:
    print(exc.message)
"""
    assert output_of(program) == ["0", *["the client is closed: connect another one"] * 3]


def test_a_callback_that_calls_its_client_is_refused() -> None:
    program = """
def assigned(assignment):
    try:
        client.admin()
        client.offsets("t")
    except PreconditionError as exc:
        print(exc.message)
with sync.Client.connect(ADDRESS) as client:
    with client.consumer("t", "g", on_assignment=assigned) as consumer:
        consumer.fetch(1)
"""
    assert output_of(program)[0].startswith("a callback, such as on_gap, runs in the client's own thread")


def test_a_program_that_closes_no_producer_is_told_what_it_left() -> None:
    program = """
async def main():
    client = await Client.connect(ADDRESS)
    producer = await client.producer("t")
    all_settled = await client.producer("u")
    await send(all_settled)
    for _ in range(3):
        producer.send_nowait(b"m", partition=0)
asyncio.run(main())
"""
    (line,) = output_of(program)
    assert line.startswith("3 messages to topic t were not settled when the program let go of their producer")
