"""RabbitMQ with a node for each copy. Its server is that of the system: `apt install rabbitmq-server`.

RabbitMQ is measured with delayed messages only: see `delayed`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from e2e.bench.peers.servers import ServerError, end, start, until_ready
from tools.ports import free_ports

PROBE: Final = Path(__file__).resolve().parents[3] / ".tools" / "rabbitmq" / "probe"
PROGRAMS: Final = Path("/usr/lib/rabbitmq/bin")
READY: Final = b"completed with"
SETTINGS: Final = """\
loopback_users = none
disk_free_limit.absolute = 1GB
vm_memory_high_watermark.absolute = 4GB
cluster_formation.peer_discovery_backend = classic_config
"""


def version() -> str:
    """The version of the system's server.

    Raises:
        ServerError: The system has none.
    """
    for found in (PROGRAMS.parent / "lib").glob("rabbitmq_server-*"):
        return found.name.partition("-")[2]
    raise ServerError(f"there is no RabbitMQ in {PROGRAMS} (Debian: apt install rabbitmq-server)")


def _lay_out(directory: Path, names: Sequence[str]) -> None:
    directory.mkdir(parents=True)
    members = "".join(f"cluster_formation.classic_config.nodes.{n} = {name}\n" for n, name in enumerate(names, 1))
    (directory / "rabbitmq.conf").write_text(SETTINGS + members)
    (directory / "plugins").write_text("[].\n")


@asynccontextmanager
async def cluster(directory: Path, nodes: int) -> AsyncIterator[list[str]]:
    """Run a cluster, and give the first words of the client's command."""
    version()
    names = [f"r{number + 1}@localhost" for number in range(nodes)]
    _lay_out(directory, names)
    epmd, *ports = free_ports(1 + 2 * nodes)
    common = {
        "HOME": directory, "LC_ALL": "C.UTF-8", "ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": epmd,
        "RABBITMQ_CONF_ENV_FILE": "/dev/null", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RUNNING_UNDER_SYSTEMD": 1,
        "RABBITMQ_CONFIG_FILE": directory / "rabbitmq.conf", "RABBITMQ_ENABLED_PLUGINS_FILE": directory / "plugins",
        "RABBITMQ_SERVER_START_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }  # fmt: skip
    async with AsyncExitStack() as stack:
        mapper = await start(directory / "epmd.log", "epmd", "-address", "127.0.0.1", "-port", str(epmd))
        stack.push_async_callback(end, mapper)
        for number, name in enumerate(names):  # one after the other, or they make two clusters
            own = {
                "RABBITMQ_NODENAME": name, "RABBITMQ_NODE_PORT": ports[2 * number],
                "RABBITMQ_DIST_PORT": ports[2 * number + 1], "RABBITMQ_MNESIA_BASE": directory / name,
                "RABBITMQ_LOG_BASE": directory / f"log-{name}", "RABBITMQ_PID_FILE": directory / f"{name}.pid",
                "RABBITMQ_GENERATED_CONFIG_DIR": directory / f"made-{name}",
            }  # fmt: skip
            words = [f"{key}={value}" for key, value in (common | own).items()]
            log = directory / f"{name}.log"
            server = await start(log, "/usr/bin/env", *words, str(PROGRAMS / "rabbitmq-server"))
            stack.push_async_callback(end, server)
            await until_ready(f"RabbitMQ's node {name}", server, log, READY)
        yield [str(PROBE), f"amqp://guest:guest@127.0.0.1:{ports[0]}"]
