"""Each form of a command, with its output and its exit status as recorded in `recorded/`."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from seriatim import (
    Balance,
    Broker,
    BrokerGroupMember,
    BrokerLoad,
    Damage,
    DeadLetter,
    DelayedMessages,
    GroupKey,
    GroupSettings,
    HeadMove,
    NameOwner,
    OwnerDescription,
    QuarantinedMessage,
    RestartCheck,
    RetryPolicy,
    SendFailedError,
    SendUnknownError,
    TopicSettings,
)
from seriatim_api.ids import make_offset

from .memory import MemoryCluster, broker_group_of, message_at, segment_of
from .test_commands import NEW, NIGHTLY, Run, cluster, run

__all__ = ["cluster", "run"]

RECORDED = Path(__file__).parent / "recorded"

DELAYED = (
    DelayedMessages(0, make_offset(3, 4), 1_700_000_000_000, 1, 292),
    DelayedMessages(0, make_offset(2, 9), 4_000_000_000_000, 1_000, 65_536),
    DelayedMessages(1, make_offset(3, 0), 1_700_000_000_000, 2, 400),
)


def fill_owners(cluster: MemoryCluster) -> None:
    loader = NameOwner("flights", "loader", 6, "host1:77", 1_700_000_000_000, False, 2_000)
    mover = NameOwner("flights", "mover", 1, "host2:8", 1_700_000_000_000, True, 500)
    cluster.owners = [mover, loader]
    cluster.described = {
        "loader": OwnerDescription(loader, True, ("host2:9", "host3:5"), (), ""),
        "mover": OwnerDescription(mover, False, ("host2:9",), (0, 3), "partition 3: it has no master at the moment"),
    }


def fill(cluster: MemoryCluster) -> None:
    """Make the cluster one in which each value that is not plain is there once."""
    day_ms = 86_400_000
    cluster.make("flights", 2)
    kept = TopicSettings(
        False, 1 << 20, 0, day_ms, 3, 5 << 20, True, 7 * day_ms, 50 << 20, {"owner": "a\x1b[31m\nb", "a/b": ""}
    )
    cluster.make("orders", 1, kept)
    cluster.make("old", 1, TopicSettings(retention_ms=day_ms))
    for partition, count in ((0, 10), (1, 5)):
        log = cluster.logs["flights", partition]
        log += [message_at("flights", partition, index, b"value %d" % index, b"key") for index in range(count)]
    log[-1] = log[-1]._replace(maybe_repeated=True, key=None, value=b"\xff")
    cluster.dropped[1] = 1
    cluster.blocked.add(1)
    cluster.cursors |= {("flights", "readers", 0): 4, ("flights", "readers", 1): 5, ("flights", "reports", 0): 9}
    cluster.places["readers", 0] = {"paused": True, "end_is_at_least": True, "standby_consumers": ("c2", "c3")}
    cluster.places["readers", 1] = {"error": "[300] it moved", "error_number": 300, "active_consumer": ""}
    cluster.places["reports", 0] = {"external": True, "active_consumer": "", "server_broker": ""}
    cluster.places["reports", 1] = {"has_cursor": False, "active_consumer": "", "standby_consumers": ()}
    members = ("g1-0", "g1-1")
    cluster.waiting["flights", "keyed"] = (
        GroupKey(0, b"kN14228", b"N14228", "parked", 5, 0, make_offset(3, 5), 3, 0, "no such aircraft", 1),
        GroupKey(0, b"kN\x1b[31m\xff", b"N\x1b[31m\xff", "parked", 5, 2, make_offset(2, 40), 1, 0, "two\nlines", 1),
        GroupKey(
            1, b"o" + make_offset(3, 1).to_bytes(8, "big"), None, "delayed", 2, 0, make_offset(3, 1), 1, 5, "late", 1
        ),
        GroupKey(1, b"k", b"", "delayed", 1, 0, make_offset(3, 2), 1, 5, "late", 1),
    )
    cluster.letters = [
        letter_of(0, 4, b"N14228", b"no such aircraft", index=5),
        letter_of(0, 6, b"N14228", b"two\nlines", index=9, value=b"x" * 3_000, history=True),
        letter_of(1, 0, None, b"", index=1),
    ]
    fill_owners(cluster)
    cluster.delayed, cluster.unserved = list(DELAYED), {1: (1, 2)}
    retry = RetryPolicy(5, delays_ms=(1_000, 60_000), exhausted="park_key")
    cluster.settings["flights", "keyed"] = GroupSettings("key_ordered", retry)
    cluster.places["keyed", 0] = {
        "parked_keys": 2, "aside_messages": 4, "consumers": ("c1", "c2"), "active_consumer": "c1, c2",
        "in_flight_messages": 12, "standby_consumers": (),
    }  # fmt: skip
    cluster.places["keyed", 1] = {"delayed_keys": 1, "active_consumer": "", "standby_consumers": ()}
    cluster.older = (
        segment_of(1, "g1", members, "SEALED", 7, start=2),
        segment_of(2, "g1", members, "SEALED", 500, tail_from=490, tail_copies=("g2-0",), incomplete_table=True),
    )
    cluster.writers = {("orders", "nightly"): NIGHTLY, ("flights", "new"): NEW}
    cluster.refuse = {
        b"bad": SendFailedError("too large", cause_number=110),
        b"odd": SendUnknownError("no broker answered", cause_number=602),
    }
    cluster.brokers = (
        Broker("g1-0", "fedcba98765432", "g1", 0, 1, "127.0.0.3:7000", False, False, disk_state="hangs"),
        *cluster.brokers,
    )
    unlinked = BrokerGroupMember("g1-0", "i", 1, True, False, "full", ("g1-1", "g1-2"))
    cluster.broker_groups = {
        "g0": broker_group_of("g0", 2, 2, 4),
        "g1": replace(broker_group_of("g1", 0, 1, 3), members=(unlinked,), waits_for="segment 3 is held up"),
    }
    cluster.checks = {
        "g0-0": RestartCheck("safe", "all members have all of it", 0, 0, 0, 0, 3),
        "g0-1": RestartCheck("last_copy", "no other disk has it", 7, 2, 40, 5, 3),
    }
    cluster.damages = [Damage("g0-0", 7, 2, 40, "a bit was flipped")]
    cluster.quarantined = [QuarantinedMessage("g0-0", 7, 2, 40, 41, None, b"value", {"h": b"1"}, 5)]
    loads = BrokerLoad("g0-0", "g0", 0, 0.0), BrokerLoad("g1-0", "g1", 2, 5e6)
    moved = BrokerLoad("g1-0", "g1", 1, 2.5e6), BrokerLoad("g0-0", "g0", 1, 2.5e6)
    cluster.balance = Balance(loads, moved, (HeadMove("flights", 1, 2, "g1", "g1-0", "g0", "g0-0", 2.5e6),), "")


@pytest.mark.parametrize("name", ["commands", "plain"])
def test_each_command_prints_and_ends_as_recorded(
    run: Run, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """To record again after a change: look at the new text, and write it with SERIATIM_RECORD=1.

    A line `$` is a command, with its input after `<`; `!` is a line on stderr; the exit status is last, unless it is 0.
    A line `--` says why the commands below it are there. `commands` has a cluster that is filled, `plain` an empty one.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seriatim.cli.balance.LOOK_S", 0.001)
    monkeypatch.setattr("seriatim.cli.broker_group.LOOK_S", 0.001)
    if name == "commands":
        fill(cluster)
    path = RECORDED / f"{name}.txt"
    recorded = path.read_text()
    text = ""
    for line in re.findall(r"^(?:\$|--) .*", recorded, re.MULTILINE):
        printed = []
        if line.startswith("$"):
            words, _, stdin = line.removeprefix("$ seriatim ").partition(" < ")
            status, out, err = run(*shlex.split(words), stdin=stdin.encode().decode("unicode_escape").encode())
            if words.startswith(("produce", "--output json produce")):
                out, err = without_times(out), without_times(err)
            told = [f"! {row}" for row in err.splitlines()]
            printed = [*out.splitlines(), *told, *([f"[{status}]"] if status else [])]
        text += "".join(f"{row.rstrip()}\n" for row in (line, *printed))
    if os.environ.get("SERIATIM_RECORD"):
        path.write_text(text)
    assert text == path.read_text()
    if name == "commands":
        check_acts(cluster, tmp_path)


def check_acts(cluster: MemoryCluster, directory: Path) -> None:
    """What the commands did that they do not print: each act, once, with what it was given."""
    me = getpass.getuser()
    assert cluster.gaps == [("flights", 0, 3, me), ("flights", 0, 3, "you")]
    assert cluster.dead == [("g0-0", 4, me), ("g0-0", 4, me, "reaped")]
    assert cluster.removed == ["g0-1", "g0-1"]
    assert cluster.balanced == 2
    noon_ms = 1_796_126_400_000
    assert cluster.delays[:2] == [(b"soon", 500, None), (b"later", 90_000, None)]
    assert cluster.delays[2:] == [(b"noon", None, noon_ms), (b"eve", None, noon_ms)]
    assert not cluster.writers
    row = json.loads((directory / "kept").read_text())
    assert (row["index"], row["key"], row["value"]) == (41, None, "dmFsdWU=")


def letter_of(
    partition: int, at: int, key: bytes | None, reason: bytes, *, index: int, value: bytes = b"v", history: bool = False
) -> DeadLetter:
    """A dead letter of the group `keyed`."""
    earlier = ({"offset": "2:3", "group": "keyed", "attempts": 5, "reason": "late", "time_ms": 1},) if history else ()
    return DeadLetter(
        "flights.keyed.dead", partition, make_offset(2, at), key, value, 5, {"h": b"\x00"}, None, "flights", partition,
        make_offset(3, index), "keyed", 5, reason.decode(), 1_700_000_000_000, history, earlier,
    )  # fmt: skip


def without_times(text: str) -> str:
    """The text without what depends on the speed of the machine: durations, and which partition was the slowest."""
    text = re.sub(" +", " ", text)
    text = re.sub(r"\(partition \d+\)|(?<=\"gap_partition\": )\d+", "N", text)
    text = re.sub(r"[\d.,]+ msg/s\b", "N msg/s", text)
    text = re.sub(r"[\d.,]+ (ms|s)\b", "N s", text)  # a busy machine may need seconds
    return re.sub(r'"(duration_s|rate|p50_ms|p99_ms|gap_ms_max|ms)": [\d.]+(e-\d+)?', r'"\1": N', text)
