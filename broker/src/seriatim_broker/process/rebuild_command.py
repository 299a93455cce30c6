"""`seriatim coordinator rebuild`: it asks all brokers what they know, and writes what the coordinator has lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from seriatim_api.errors import SeriatimError, UnavailableError
from seriatim_api.network.tls import TlsFiles
from seriatim_api.terminal.safe_text import echo

from ..adapters.etcd import EtcdConfig, EtcdCoordinator, EtcdTls
from ..adapters.system_clock import SystemClock
from ..rpc.calls.command_channel import AskedBroker, transport_of
from ..rpc.calls.transport import Transport
from ..rpc.servicers import rebuild_reports
from ..runtime.coordinator.keys import Keys
from ..runtime.rebuild import Answers, Plan, Told, carry_out, make_plan

ASK_DEADLINE_S = 10.0
"""For each page of a broker's answer."""

DONE, LEFT, FAILED = 0, 1, 2
"""Exit statuses: nothing is left to do; something is left to do; the command failed."""


@dataclass(frozen=True, slots=True)
class Request:
    """The options of the command.

    Attributes:
        cluster: Name of the cluster.
        coordinator: `host:port` of each of its members.
        brokers: Addresses by name. The command asks each broker.
        tls: Certificates for the brokers; None: plain text.
        coordinator_tls: Certificates for the coordinator, which may have another CA; None: plain text.
        without_groups: Names of broker groups. If none of their members answers, the command writes all the same.
        write: Whether to write. If it is false, the command only shows its plan.
    """

    cluster: str
    coordinator: tuple[str, ...]
    brokers: Mapping[str, str]
    tls: TlsFiles | None
    coordinator_tls: TlsFiles | None
    without_groups: frozenset[str]
    write: bool


def run(request: Request) -> int:
    """Run the command.

    Returns:
        The exit status: 0, 1 or 2.
    """
    try:
        return asyncio.run(_run(request))
    except SeriatimError as exc:
        echo(f"nothing more was written: {exc}", err=True)
        return FAILED


async def _run(request: Request) -> int:
    transport = transport_of(request.tls)
    tls = EtcdTls(request.coordinator_tls) if request.coordinator_tls is not None else None
    client = EtcdCoordinator(EtcdConfig(request.coordinator, tls))
    try:
        answers = await _ask_all(request.brokers, transport)
        plan = await make_plan(client, Keys(request.cluster), answers, SystemClock().wall_ms(), request.without_groups)
        _show(plan)
        return await _carry_out(client, plan, write=request.write)
    finally:
        await client.close()


async def _carry_out(client: EtcdCoordinator, plan: Plan, *, write: bool) -> int:
    is_whole = not plan.conflicts and not plan.refusals
    if not plan.steps:
        echo("The coordinator has all that these brokers know: nothing to write.")
        return DONE if is_whole else LEFT
    if not write:
        echo(f"Nothing was written. To write these {len(plan.steps)} records: the same with --yes.")
        return LEFT
    if plan.refusals:
        echo("Nothing was written, because of the lines above that begin with refused.")
        return FAILED
    changed = await carry_out(client, plan)
    echo(f"{len(plan.steps) - len(changed)} records written.")
    for text in changed:
        echo(f"not written, it has changed meanwhile; run this again: {text}")
    return LEFT if changed or not is_whole else DONE


def _show(plan: Plan) -> None:
    for title, lines in (
        ("would write", [step.text for step in plan.steps]),
        ("left alone, an administrator must decide", plan.conflicts),
        ("did not report", plan.silent),
        ("cannot be known", plan.unknown),
        ("refused", plan.refusals),
    ):
        for line in lines:
            echo(f"{title}: {line}")


async def _ask_all(brokers: Mapping[str, str], transport: Transport) -> Answers:
    """Ask all brokers at the same time.

    Raises:
        UnavailableError: No broker answered.
        SeriatimError: The process at a broker's address is another broker.
    """
    asked = [_ask(name, address, transport) for name, address in brokers.items()]
    found = dict(zip(brokers, await asyncio.gather(*asked), strict=True))
    told = tuple(one for one in found.values() if isinstance(one, Told))
    silent = {name: one.message for name, one in found.items() if isinstance(one, UnavailableError)}
    if not told:
        reasons = "; ".join(f"{name}: {why}" for name, why in silent.items())
        raise UnavailableError(f"no broker answered ({reasons}). Remedy: start the brokers, and check the addresses")
    for one in told:
        echo(f"{one.name}: knows {len(one.chains)} partitions; {one.behind or 'says nothing is lost'}")
    return Answers(told, silent)


async def _ask(name: str, address: str, transport: Transport) -> Told | UnavailableError:
    """What the broker reported, or why it did not answer.

    Raises:
        SeriatimError: The process at the address is another broker.
    """
    try:
        async with AskedBroker(address, transport) as broker:
            pages = await broker.tell_known(deadline_s=ASK_DEADLINE_S)
    except UnavailableError as exc:
        return exc
    told = rebuild_reports.read(pages[0].member.member.broker, pages)
    if told.name != name:
        raise SeriatimError(f"{address} is {told.name}, not {name}")
    return told
