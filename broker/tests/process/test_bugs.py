"""A broken assertion ends the process, wherever it is: no task, no callback of the event loop and no call keeps it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from seriatim_broker.adapters.rocks.engine import EXIT_DISK_FAILED
from seriatim_broker.composition import EXIT_STATUS_CRASHED

from tools.ports import free_ports

DEADLINE_S = 100
"""A process that does not end is killed then. It bounds nothing else: a busy machine took 54 s for a start."""

PLANTED = {
    "a step of the core": "BrokerCore.step",
    "the question when to wake": "BrokerCore.next_wake_us",
    "a submit to the disk": "RocksStorage.submit",
    "a turn of the disk's writer": "Writer._write_group",
    "a transaction": "CoordinatorRequests._write_jointly",  # each new topic makes one; not each run needs a read
    "the upkeep of a link": "Links._maintain",
    "a callback that nothing guards": "Broker._watch_directory",
    "a call": "AdminServicer.CreateTopic",
    "a stream": "AppendStream.__init__",
    "the task that writes to a stream": "GrpcCarriage._write",
    "a stream of the embedded coordinator": "LeaseService.LeaseKeepAlive",
}

PROGRAM = """
import asyncio, inspect, json, os, signal, sys, threading, time
import grpc
from seriatim_api.protocol import PROTOCOL
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc
from seriatim_broker import composition, serving
from seriatim_broker.adapters.rocks import storage, writer
from seriatim_broker.core import broker
from seriatim_local.commands import standalone
from seriatim_local.embedded import service
from seriatim_broker.rpc.servicers import admin
from seriatim_broker.rpc.streams import append, over_grpc
from seriatim_broker.runtime.driver import coordinator_requests, links

started = {}
for place, words in json.loads(sys.argv[1]).items():
    if pid := os.fork():  # nothing of gRPC or RocksDB runs yet
        started[pid] = place
        continue
    os.dup2(os.open(os.path.dirname(words[-1]) + "/log", os.O_CREAT | os.O_WRONLY), 1)
    os.dup2(1, 2)
    signal.alarm(int(sys.argv[2]))
    break
else:
    ended = {started.pop(pid): status for pid, status in iter(lambda: os.wait() if started else (0, 0), (0, 0))}
    print(json.dumps({place: os.waitstatus_to_exitcode(status) for place, status in ended.items()}))
    sys.exit()

homes = {
    "BrokerCore": broker.BrokerCore, "RocksStorage": storage.RocksStorage, "Links": links.Links,
    "CoordinatorRequests": coordinator_requests.CoordinatorRequests,
    "Broker": composition.Broker, "Writer": writer.Writer,
    "AdminServicer": admin.AdminServicer, "AppendStream": append.AppendStream,
    "GrpcCarriage": over_grpc.GrpcCarriage, "LeaseService": service.LeaseService,
}
name, method = place.split(".")
count = 0
real = getattr(homes[name], method)

def fails(*arguments, **options):
    global count
    count += 1
    if count > 3 or name != "BrokerCore":
        raise AssertionError("planted")
    return real(*arguments, **options)

async def fails_later(*arguments):
    raise AssertionError("planted")

async def fails_in_a_stream(*arguments):
    raise AssertionError("planted")
    yield

if inspect.isasyncgenfunction(real):
    setattr(homes[name], method, fails_in_a_stream)
elif name != "Broker":
    setattr(homes[name], method, fails_later if asyncio.iscoroutinefunction(real) else fails)
else:
    def broken():
        raise AssertionError("planted")
    watch = composition.Broker._watch_directory
    def with_callback(self):
        asyncio.get_running_loop().call_later(0.2, broken)
        return watch(self)
    composition.Broker._watch_directory = with_callback

def hello():
    request = broker_pb2.ConsumeRequest()
    request.hello.protocol = PROTOCOL
    yield request.SerializeToString()
    threading.Event().wait()  # the streams stay

def use(address):
    channel = grpc.insecure_channel(address)
    stub = broker_pb2_grpc.AdminStub(channel)
    paths = ("/seriatim.v1.Producing/Append", "/seriatim.v1.Consuming/Consume")
    streams = [channel.stream_stream(path)(hello(), wait_for_ready=True) for path in paths]
    while True:
        try:
            stub.CreateTopic(broker_pb2.CreateTopicRequest(name="t", partition_count=1), timeout=2)
            break
        except grpc.RpcError:
            time.sleep(0.1)
    threading.Event().wait()

threading.Thread(target=use, args=(words[1],), daemon=True).start()
standalone(words)
"""


def test_a_broken_assertion_ends_the_process_wherever_it_is(tmp_path: Path) -> None:
    places = {}
    for number, place in enumerate(PLANTED.values()):
        (tmp_path / str(number)).mkdir()
        first, _, _, admin = free_ports(4)  # it takes three in a row
        words = ["--listen", f"127.0.0.1:{first}", "--admin-listen", f"127.0.0.1:{admin}"]
        places[place] = [*words, "--data", str(tmp_path / str(number) / "data")]
    command = [sys.executable, "-c", PROGRAM, json.dumps(places), str(DEADLINE_S)]
    ended = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    for number, (what, place) in enumerate(PLANTED.items()):
        log = (tmp_path / str(number) / "log").read_text()
        assert ended[place] in (EXIT_STATUS_CRASHED, EXIT_DISK_FAILED), (what, ended[place], log[-2000:])
        assert "planted" in log, what
