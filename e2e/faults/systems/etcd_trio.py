"""An etcd of three members as one process of a local cluster: a small parent that starts the members.

The cluster knows one coordinator process. That process runs three etcd members. It writes their process ids to a file,
so that a fault can strike a single member. If a member has ended, it starts the member again, unless the directory has
a file `hold`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from seriatim_local import ClusterPlan
from seriatim_local.layout.programs import find_etcd
from seriatim_local.processes import child as child_module

MEMBER_COUNT: Final = 3
PIDS_NAME: Final = "pids.json"
HOLD_NAME: Final = "hold"
POLL_S: Final = 0.1
END_GRACE_S: Final = 5.0

_PORTS_FROM: Final = 4
"""The ports begin so far above the cluster's base port on the coordinator's address: 4 to 9 are free (see
`seriatim_local.layout.plan`).
"""


def addresses(plan: ClusterPlan) -> list[tuple[str, str]]:
    """Return (client address, peer address) of each member.

    The first client address is the coordinator's in the plan.
    """
    host = plan.coordinator.host
    ports = range(plan.base_port + _PORTS_FROM, plan.base_port + _PORTS_FROM + 2 * (MEMBER_COUNT - 1), 2)
    others = [(f"{host}:{port}", f"{host}:{port + 1}") for port in ports]
    return [(str(plan.coordinator), str(plan.coordinator_peers)), *others]


def endpoints(plan: ClusterPlan, first: str) -> str:
    """Return the endpoints for a broker: `first` (its way through the proxy), and the other members directly."""
    return ",".join([first, *(client for client, _peer in addresses(plan)[1:])])


def command(plan: ClusterPlan, data: Path) -> Sequence[str]:
    """Return the command line of the parent."""
    members = {f"m{number}": list(pair) for number, pair in enumerate(addresses(plan))}
    return [sys.executable, "-m", "e2e.faults.systems.etcd_trio", str(data), json.dumps(members), find_etcd()]


def pids(data: Path) -> dict[str, int]:
    """Return the members' process ids by name, as the parent wrote them last."""
    found: dict[str, int] = json.loads((data / PIDS_NAME).read_text())
    return found


def _argv(data: Path, members: dict[str, list[str]], name: str, etcd: str) -> list[str]:
    client, peer = members[name]
    options = {
        "--name": name,
        "--data-dir": str(data / name),
        "--listen-client-urls": f"http://{client}",
        "--advertise-client-urls": f"http://{client}",
        "--listen-peer-urls": f"http://{peer}",
        "--initial-advertise-peer-urls": f"http://{peer}",
        "--initial-cluster": ",".join(f"{other}=http://{pair[1]}" for other, pair in members.items()),
        "--log-level": "warn",
    }
    return [etcd, *(word for option in options.items() for word in option)]


def main() -> None:
    """Run the members until SIGTERM."""
    data, members, etcd = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: over.append(number))
    running: dict[str, subprocess.Popen[bytes]] = {}
    starter = [sys.executable, "-I", "-S", str(Path(child_module.__file__).resolve())]
    while not over:
        ended = [name for name in members if name not in running or running[name].poll() is not None]
        if ended and not (running and (data / HOLD_NAME).exists()):
            for name in ended:
                own = [*starter, str(os.getpid()), *_argv(data, members, name, etcd)]
                running[name] = subprocess.Popen(own, stdin=subprocess.DEVNULL)
            temporary = data / f"{PIDS_NAME}.new"
            temporary.write_text(json.dumps({name: process.pid for name, process in running.items()}))
            temporary.rename(data / PIDS_NAME)
        time.sleep(POLL_S)
    for process in running.values():
        process.send_signal(signal.SIGCONT)
        process.terminate()
    for process in running.values():
        try:
            process.wait(END_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()


if __name__ == "__main__":
    main()
