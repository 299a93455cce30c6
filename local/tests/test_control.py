"""The control socket, and the commands over it, against a cluster that runs in this process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from seriatim_api.errors import BadRequestError, PreconditionError
from seriatim_local import LocalCluster, runner
from seriatim_local.commands import cluster as command
from seriatim_local.control import ControlServer, find_running, request
from seriatim_local.runner import RunnerConfig
from seriatim_local.state import read_state

from .fakes import FakePrograms

DEADLINE_S = 20.0


@asynccontextmanager
async def controlled(directory: Path) -> AsyncIterator[tuple[LocalCluster, asyncio.Event]]:
    down = asyncio.Event()
    async with (
        LocalCluster(directory, groups=1, programs=FakePrograms()) as cluster,
        ControlServer(cluster, down=down.set).serve(),
    ):
        yield cluster, down


async def run(directory: Path, *words: str) -> Result:
    return await asyncio.to_thread(
        CliRunner().invoke, command, [words[0], "--dir", str(directory), *words[1:]], catch_exceptions=False
    )


async def test_up_starts_as_many_groups_as_the_directory_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[int, int]] = []

    def detach(config: RunnerConfig) -> tuple[str, ...]:
        begun.append((config.groups, config.members))
        return ()

    monkeypatch.setattr(runner, "detach", detach)
    await run(tmp_path, "up")
    async with controlled(tmp_path) as (cluster, _):
        assert await cluster.add_group() == "g1"
    await run(tmp_path, "up")  # without g1 nothing that lies there could be read
    await run(tmp_path, "up", "--groups", "4", "--members", "3")
    for members in ("1", "6"):
        refused = await run(tmp_path, "up", "--members", members)
        assert (refused.exit_code, "2<=x<=5" in refused.output) == (2, True)
    assert begun == [(3, 2), (2, 2), (4, 3)]


async def test_up_says_that_it_starts_brokers_only_if_no_cluster_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "detach", lambda config: ())
    assert "starting 6 brokers" in (await run(tmp_path, "up")).output
    async with controlled(tmp_path):
        assert "starting" not in (await run(tmp_path, "up")).output


async def test_the_commands_do_what_they_say(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (cluster, down):
        socket = tmp_path / "control.sock"
        assert socket.stat().st_mode & 0o777 == 0o600
        first = cluster.pid("g0-0")
        assert "killed g0-0 (SIGKILL)" in (await run(tmp_path, "kill", "g0-0")).output
        assert cluster.pid("g0-0") is None
        assert "nothing to do" in (await run(tmp_path, "kill", "g0-0")).output
        assert "started g0-0" in (await run(tmp_path, "start", "g0-0")).output
        assert cluster.pid("g0-0") not in (None, first)
        assert "froze g0-1" in (await run(tmp_path, "freeze", "g0-1")).output
        assert "cut g0-0-clients" in (await run(tmp_path, "cut", "g0-0", "clients")).output
        status = (await run(tmp_path, "status")).output
        assert "frozen" in status
        assert "clients" in status
        assert "thawed g0-1" in (await run(tmp_path, "thaw", "g0-1")).output
        assert "nothing to do" in (await run(tmp_path, "thaw", "brokers")).output
        assert "name a VICTIM" in (await run(tmp_path, "freeze")).output
        assert (await run(tmp_path, "bootstrap")).output == f"{','.join(cluster.bootstrap)}\n"
        assert "healed" in (await run(tmp_path, "heal")).output
        assert "nothing was cut or delayed" in (await run(tmp_path, "heal")).output
        assert (
            "delayed g0-0-clients (25ms+100ms)"
            in (await run(tmp_path, "lag", "g0-0", "clients", "25ms", "--jitter", "100ms")).output
        )
        assert "lag of g0-0: clients 25ms+100ms" in (await run(tmp_path, "status")).output
        assert "nothing to do" in (await run(tmp_path, "lag", "g0-1", "0ms")).output
        assert "delayed g0-1>all (0.5ms)" in (await run(tmp_path, "lag", "g0-1", "0.5ms", "--one-way")).output
        assert "no longer delayed: g0-0-all" in (await run(tmp_path, "lag", "g0-0", "0ms")).output
        assert "no longer delayed: all-all" in (await run(tmp_path, "heal")).output
        for words, wrong in ((("g0", "25"), "such as 25ms"), (("a", "b", "c", "1ms"), "one END or two")):
            refused = await run(tmp_path, "lag", *words)
            assert refused.exit_code == 2
            assert wrong in refused.output
        assert "stopped g0-1" in (await run(tmp_path, "stop", "g0-1")).output
        assert "started g0-1" in (await run(tmp_path, "restart", "g0-1")).output
        lines = (await run(tmp_path, "faults")).output.splitlines()
        assert len(lines) == len(cluster.faults)
        assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3} \w+ ", line) for line in lines), lines
        assert "is down" in (await run(tmp_path, "down")).output
        assert down.is_set()
        assert cluster.pid("coordinator") is None
    with pytest.raises(PreconditionError, match="no cluster runs"):
        find_running(tmp_path)


async def test_a_bad_request_is_answered_and_the_next_one_served(tmp_path: Path) -> None:
    async with controlled(tmp_path):
        state = find_running(tmp_path)
        with pytest.raises(BadRequestError, match="there is no signal"):
            await asyncio.to_thread(
                request, state, "kill", {"victims": ["g0"], "signal": "NONSENSE"}, deadline_s=DEADLINE_S
            )
        reader, writer = await asyncio.open_unix_connection(state.control)
        writer.write(b"rubbish\n")
        answer = json.loads(await asyncio.wait_for(reader.readline(), DEADLINE_S))
        assert answer["error"]["number"] == 100
        writer.close()
        found = await asyncio.to_thread(request, state, "status", {}, deadline_s=DEADLINE_S)
        assert [broker["ready"] for broker in found["brokers"]] == [True, True]


async def test_a_long_directory_name_gets_a_socket_elsewhere(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 120)
    async with controlled(directory):
        state = read_state(directory)
        assert state is not None
        assert not state.control.startswith(str(directory))
        found = await asyncio.to_thread(request, find_running(directory), "faults", {}, deadline_s=DEADLINE_S)
        assert found == []


async def test_a_cluster_of_another_program_takes_no_commands(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, groups=1, members=1, programs=FakePrograms()):
        with pytest.raises(PreconditionError, match="takes no commands"):
            find_running(tmp_path)
