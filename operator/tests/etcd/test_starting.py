"""Members of a real etcd on loopback addresses: first start, a lost disk, and a lost disk while all are down."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from seriatim_operator.cluster.kube import KubeError
from seriatim_operator.etcd.gateway import Gateway, GatewayError
from seriatim_operator.etcd.starting import Place, prepare

from ..api_server import find_program

ETCD, CTL, UTL = find_program("etcd"), find_program("etcdctl"), find_program("etcdutl")
START_S = 60.0

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.skipif(ETCD is None, reason="there is no etcd: `make tools` builds one (needs Go)"),
]


class WouldWaitError(Exception):
    """It would wait."""


class Patience:
    """Looks again each 0.1 s, for at most `START_S`."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + START_S

    def __call__(self, _seconds: float) -> None:
        """Instead of sleeping for this long."""
        assert time.monotonic() < self._deadline
        time.sleep(0.1)


def no_waiting(_seconds: float) -> None:
    """Instead of sleeping."""
    raise WouldWaitError


class Register:
    """Names in memory; or an API that cannot be reached."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.is_silent = False

    def _ask(self) -> None:
        if self.is_silent:
            raise KubeError(0, "", "no answer")

    def begun(self) -> dict[str, str]:
        """Who has begun."""
        self._ask()
        return self.names

    def write_down(self, name: str, began: str) -> None:
        """It begins."""
        self._ask()
        self.names[name] = began


class Members:
    """Three members, each with an address of its own."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.register = Register()
        self._stack = stack
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.places = []
        for number in range(3):
            root = directory / f"e-{number}"
            root.mkdir()
            host = f"127.0.9.{number + 1}"
            settings = {
                "data-dir": str(root / "volume" / "data"),
                "listen-client-urls": f"http://{host}:24379",
                "listen-peer-urls": f"http://{host}:24380",
                "initial-cluster": ",".join(f"e-{i}=http://127.0.9.{i + 1}:24380" for i in range(3)),
                "initial-cluster-token": "test",
                "unsafe-no-fsync": True,
            }
            (root / "settings.yaml").write_text(yaml.safe_dump(settings))
            (root / "volume").mkdir()
            place = Place(f"e-{number}", root / "settings.yaml", root / "volume", root / "start.yaml", None, 24379)
            self.places.append(place)

    def prepare(self, number: int, *, patiently: bool = False) -> str:
        """As the init container does; returns the state that it starts in.

        Members that have just met do not change their membership: etcd wants to have seen them for five seconds.
        """
        prepare(self.places[number], self.register, Patience() if patiently else no_waiting)
        started_with = json.loads(self.places[number].output.read_text())
        assert started_with["name"] == f"e-{number}"
        return str(started_with["initial-cluster-state"])

    def start(self, number: int) -> None:
        """Run etcd with what was prepared."""
        assert ETCD is not None
        log = (self.places[number].volume.parent / "log").open("wb")
        process = subprocess.Popen([ETCD, f"--config-file={self.places[number].output}"], stdout=log, stderr=log)
        log.close()
        self._stack.callback(self.kill, number)
        self._running[number] = process

    def kill(self, number: int) -> None:
        """kill -9."""
        process = self._running.pop(number, None)
        if process is not None:
            process.kill()
            process.wait()

    def lose_disk(self, number: int) -> None:
        """The member ends, and its disk is empty."""
        self.kill(number)
        subprocess.run(["rm", "-rf", *self.places[number].volume.iterdir()], check=True)

    def gateway(self, number: int) -> Gateway:
        """One member's."""
        return Gateway([f"http://127.0.9.{number + 1}:24379"], None)

    def wait_serving(self, number: int) -> None:
        """Until a member answers by the word of a majority."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.gateway(number).members()
                return
            except GatewayError as exc:
                if time.monotonic() > deadline:
                    log = (self.places[number].volume.parent / "log").read_text(errors="replace")[-2000:]
                    pytest.fail(f"{exc}\n{log}")

    def call(self, number: int, path: str, body: dict[str, object]) -> dict[str, object]:
        """A call to one member's gateway."""
        request = urllib.request.Request(f"http://127.0.9.{number + 1}:24379{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            found = json.load(answer)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    """Three that run, with a key."""
    with ExitStack() as stack:
        found = Members(tmp_path, stack)
        for number in range(3):
            assert found.prepare(number) == "new"
        for number in range(3):
            found.start(number)
        found.wait_serving(0)
        found.call(0, "/v3/kv/put", {"key": "a2V5", "value": "dmFsdWU="})
        yield found


def test_a_member_with_its_log_asks_nobody(members: Members) -> None:
    for number in range(3):
        members.kill(number)
    members.register.is_silent = True
    assert members.prepare(1) == "existing"


def test_a_lost_disk_comes_back_as_a_new_member_with_everything(members: Members) -> None:
    before = {member.name: member.id for member in members.gateway(0).members()}
    members.lose_disk(1)
    assert members.prepare(1, patiently=True) == "existing"
    members.start(1)
    members.wait_serving(1)
    after = {member.name: member.id for member in members.gateway(0).members()}
    assert set(after) == {"e-0", "e-1", "e-2"}
    assert after["e-1"] != before["e-1"], "the old identity and its promises are gone for good"
    found = members.call(1, "/v3/kv/range", {"key": "a2V5", "serializable": True})
    assert found["count"] == "1"


def test_a_lost_disk_waits_while_there_is_no_majority_and_does_not_vote_as_if_nothing_had_been(
    members: Members,
) -> None:
    for number in range(3):
        members.kill(number)
    members.lose_disk(1)
    with pytest.raises(WouldWaitError):
        members.prepare(1)
    assert members.prepare(0) == "existing"
    members.start(0)  # one of three: no majority
    with pytest.raises(WouldWaitError):
        members.prepare(1)
    assert members.prepare(2) == "existing"
    members.start(2)
    members.wait_serving(0)
    assert members.prepare(1, patiently=True) == "existing"
    members.start(1)
    members.wait_serving(1)
    assert members.call(1, "/v3/kv/range", {"key": "a2V5"})["count"] == "1"


def test_an_empty_disk_waits_while_the_register_cannot_be_read(members: Members) -> None:
    members.lose_disk(1)
    members.register.is_silent = True
    with pytest.raises(WouldWaitError):
        members.prepare(1)


def test_a_lost_register_learns_again_from_the_members_that_have_their_logs(members: Members) -> None:
    members.register.names.clear()
    assert members.prepare(1) == "existing"
    assert set(members.register.names) == {"e-1"}


def test_members_that_are_added_to_one_neither_begin_beside_it_nor_take_its_majority(tmp_path: Path) -> None:
    with ExitStack() as stack:
        members = Members(tmp_path, stack)
        alone = members.places[0].settings
        of_one = {**yaml.safe_load(alone.read_text()), "initial-cluster": "e-0=http://127.0.9.1:24380"}
        alone.write_text(yaml.safe_dump(of_one))
        assert members.prepare(0) == "new"
        members.start(0)
        members.wait_serving(0)
        with pytest.raises(WouldWaitError):
            members.prepare(1)
        members.wait_serving(0)
        assert [member.name for member in members.gateway(0).members()] == ["e-0"]
        members.kill(0)
        for number in (1, 2):
            with pytest.raises(WouldWaitError):
                members.prepare(number)


@pytest.mark.skipif(CTL is None or UTL is None, reason="there is no etcdutl: `make tools` builds one (needs Go)")
def test_a_restored_member_takes_in_the_others_one_after_another(members: Members, tmp_path: Path) -> None:
    assert CTL is not None
    assert UTL is not None
    snapshot = tmp_path / "etcd.db"
    subprocess.run([CTL, "--endpoints=http://127.0.9.1:24379", "snapshot", "save", snapshot], check=True)
    for number in range(3):
        members.lose_disk(number)
    peer = "http://127.0.9.1:24380"
    subprocess.run(
        [UTL, "snapshot", "restore", snapshot, f"--data-dir={members.places[0].volume / 'data'}", "--name=e-0",
         f"--initial-cluster=e-0={peer}", "--initial-cluster-token=test", f"--initial-advertise-peer-urls={peer}",
         "--bump-revision=1000000000", "--mark-compacted"],
        check=True,
    )  # fmt: skip
    assert members.prepare(0) == "existing"
    members.start(0)
    members.wait_serving(0)
    for number in (1, 2):
        assert members.prepare(number, patiently=True) == "existing"
        members.start(number)
        members.wait_serving(number)
    assert {member.name for member in members.gateway(2).members()} == {"e-0", "e-1", "e-2"}
    assert members.call(2, "/v3/kv/range", {"key": "a2V5"})["count"] == "1"
