"""`seriatim coordinator-rebuild`: asks all brokers what they know, and writes what the coordinator has lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
import grpc
from seriatim_api.errors import SeriatimError
from seriatim_api.status import from_status
from seriatim_api.tls import TlsFiles
from seriatim_api.v1 import operations_pb2, operations_pb2_grpc

from .adapters.etcd import EtcdConfig, EtcdCoordinator, EtcdTls
from .rpc import known
from .rpc.limits import CHANNEL_OPTIONS
from .runtime.keys import Keys
from .runtime.rebuilding import Plan, Told, carry_out, make_plan

ASK_DEADLINE_S = 10.0
"""Of each page that a broker tells."""


def run(cluster: str, coordinator: str, brokers: dict[str, str], tls: tuple[Path, Path, Path] | None, yes: bool) -> int:
    """The command; returns the exit status: 0 nothing left to do, 1 something is left, 2 it could not be done."""
    try:
        return asyncio.run(_run(cluster, coordinator, brokers, tls, yes))
    except SeriatimError as exc:
        click.echo(f"nothing more was written: {exc}", err=True)
        return 2


async def _run(
    cluster: str, coordinator: str, brokers: dict[str, str], tls: tuple[Path, Path, Path] | None, yes: bool
) -> int:
    files = TlsFiles(*tls) if tls is not None else None
    client = EtcdCoordinator(EtcdConfig(tuple(coordinator.split(",")), EtcdTls(files) if files is not None else None))
    try:
        told = [await _ask(name, address, tls) for name, address in brokers.items()]
        for one in told:
            click.echo(f"{one.name}: knows {len(one.chains)} partitions; {one.behind or 'says nothing is lost'}")
        plan = await make_plan(client, Keys(cluster), told)
        _show(plan)
        if not plan.steps:
            click.echo("The coordinator has all that these brokers know: nothing to write.")
            return 1 if plan.conflicts else 0
        if not yes:
            click.echo(f"Nothing was written. To write these {len(plan.steps)} records: the same with --yes.")
            return 1
        changed = await carry_out(client, plan)
        click.echo(f"{len(plan.steps) - len(changed)} records written.")
        for text in changed:
            click.echo(f"not written, it has changed meanwhile; run this again: {text}")
        return 1 if changed or plan.conflicts else 0
    finally:
        await client.close()


def _show(plan: Plan) -> None:
    for title, lines in (
        ("would write", [step.text for step in plan.steps]),
        ("left alone, a person must decide", plan.conflicts),
        ("cannot be known", plan.unknown),
    ):
        for line in lines:
            click.echo(f"{title}: {line}")


async def _ask(name: str, address: str, tls: tuple[Path, Path, Path] | None) -> Told:
    pages: list[operations_pb2.TellKnownResponse] = []
    async with _channel(address, tls) as channel:
        stub: Any = operations_pb2_grpc.OperationsStub(channel)  # type: ignore[no-untyped-call]
        after = 0
        while not pages or not pages[-1].is_last:
            request = operations_pb2.TellKnownRequest(after_partition_id=after)
            try:
                pages.append(await stub.TellKnown(request, timeout=ASK_DEADLINE_S))
            except grpc.aio.AioRpcError as exc:
                metadata = [(str(key), value) for key, value in exc.trailing_metadata() or ()]
                raise from_status(exc.code(), exc.details() or "", metadata) from exc
            after = max((known.chain.partition_id for known in pages[-1].partitions), default=after)
    told = known.read(pages[0].member.member.broker, pages)
    if told.name != name:
        raise SeriatimError(f"{address} is {told.name}, not {name}")
    return told


def _channel(address: str, tls: tuple[Path, Path, Path] | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    authority, certificate, key = (file.read_bytes() for file in tls)
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
