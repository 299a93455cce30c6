"""The work of `seriatim coordinator` and `seriatim standalone`: start, serve until SIGTERM or SIGINT, stop cleanly.

This module imports every library of the broker. It is apart from `commands`, which `seriatim --help` loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from seriatim_api.errors import SeriatimError
from seriatim_api.network.tls import TlsFiles, TlsSource
from seriatim_broker.composition import Broker, serve_admin
from seriatim_broker.metrics.broker import Exposition
from seriatim_broker.process import logs
from seriatim_broker.process.memory import settle_objects
from seriatim_broker.process.settings import check_address, load
from seriatim_broker.process.tls import open_source, server_credentials
from seriatim_broker.serving import refuse, run, serve_until_stopped, stop_signal

from seriatim_local.embedded import serve
from seriatim_local.layout.ports import PortRange

PORT_COUNT: Final = 3
"""The ports of a standalone: two brokers and the coordinator."""


def run_coordinator(data: Path, listen: str, log_level: str, tls: TlsFiles | None) -> None:
    """Run the embedded coordinator until a signal stops it, with mutual TLS if certificates are given."""
    try:
        check_address(listen)
        logs.configure(log_level)
        source = open_source(tls, "coordinator") if tls is not None else None
    except (SeriatimError, ValueError) as exc:
        refuse(exc)
    run(_coordinator(data, listen, source))


def run_standalone(data: Path, listen: str, admin_listen: str, log_level: str) -> None:
    """Run the embedded coordinator and two brokers in this process until a signal stops it."""
    try:
        host, port = check_address(listen)
        logs.configure(log_level)
    except ValueError as exc:
        refuse(exc)
    try:
        # Three ports in a row are needed, so port 0 cannot be left to the kernel.
        reserved = nullcontext(port) if port else _reserved(host)
        with reserved as first:
            run(_standalone(data, host, first, admin_listen))
    except SeriatimError as exc:
        refuse(exc)


@contextmanager
def _reserved(host: str) -> Iterator[int]:
    """The first of the ports of a standalone, which this process keeps from other local clusters until its end."""
    with PortRange.reserve_free(host, PORT_COUNT) as ports:
        yield ports.base


async def _coordinator(data: Path, listen: str, tls: TlsSource | None) -> None:
    credentials = server_credentials(tls, "required") if tls is not None else None
    running = await serve(data, listen, credentials=credentials)
    settle_objects()
    try:
        await stop_signal()
    finally:
        await running.stop()


async def _standalone(data: Path, host: str, port: int, admin_listen: str) -> None:
    logs.say(
        "seriatim standalone: one process for a first look. Both copies of every message are on this one disk, "
        "and the coordinator is in the same process: nothing here survives the loss of the machine."
    )
    running = await serve(data / "coordinator", f"{host}:{port + 2}")
    brokers: list[Broker] = []
    admin = None
    exposition = Exposition()
    try:
        for slot in range(2):
            settings = load(
                {
                    "cluster": "standalone",
                    "group": "g0",
                    "slot": slot,
                    "data": data / f"g0-{slot}",
                    "listen": f"{host}:{port + slot}",
                    "link_listen": f"{host}:0",  # the broker tells the other one which port it got, and
                    "stream_listen": f"{host}:0",  # clients
                    "coordinator": running.address,
                    "stop_deadline_s": 0,  # there is no other broker group to hand over to
                },
                None,
                {},
            )
            member = Broker(settings, exposition)
            logs.name_partitions(member.partition_name)
            await member.start()
            brokers.append(member)
        logs.say(f"seriatim standalone: serving on {host}:{port} and {host}:{port + 1}")
        admin = await serve_admin(admin_listen, exposition, brokers)
        await serve_until_stopped(brokers)
    finally:
        for member in brokers:
            await member.stop()
        if admin is not None:
            await admin.close()
        await running.stop()
