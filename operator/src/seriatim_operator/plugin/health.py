"""What each broker says of itself at `/readyz`, read through a port-forward to each pod.

A broker that is not ready serves no client, but its admin port answers. The Kubernetes API knows only that the probe
failed, and not why; nor does it know of what a broker says although it is ready.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from rich.text import Text
from seriatim_api import troubles

from ..cluster.brokers import Credentials
from ..cluster.connection import Connection
from ..cluster.kube import Kube
from ..cluster.port_forward import ForwardFailedError, forward
from ..resources.names import ADMIN_PORT
from .errors import PluginError
from .findings import Finding, bad, unknown, warning, well
from .live import client_credentials
from .look import Look

ASK_DEADLINE_S: Final = 10.0
ASKED_AT_ONCE_MAX: Final = 8


@dataclass(frozen=True)
class Page:
    """The answer of one broker's `/readyz`.

    Attributes:
        text: What it said; empty if it did not answer.
        problem: Why it did not answer; empty if it did.
    """

    text: str
    problem: str = ""


async def read_pages(connection: Connection, kube: Kube, look: Look) -> dict[str, Page]:
    """The page of each broker whose pod runs, by the pod's name.

    Raises:
        PluginError: The certificates that prove who answers may not be read.
    """
    running = sorted(view.name for view in look.pods.values() if view.is_running and not view.is_deleting)
    if not running:
        return {}
    credentials = await client_credentials(kube, look.cluster)
    slots = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def read(pod: str) -> Page:
        async with slots:
            return await _read(connection, look.cluster.namespace, pod, credentials)

    pages = await asyncio.gather(*(read(pod) for pod in running))
    return dict(zip(running, pages, strict=True))


async def _read(connection: Connection, namespace: str, pod: str, credentials: Credentials | None) -> Page:
    scheme, context, name = "http", None, None
    if credentials is not None:
        scheme, name = "https", credentials.server_name
        context = ssl.create_default_context(cadata=credentials.ca.decode())
    try:
        async with (
            asyncio.timeout(ASK_DEADLINE_S),
            forward(connection.configuration, namespace, pod, ADMIN_PORT) as address,
            aiohttp.ClientSession() as session,
            session.get(f"{scheme}://{address}/readyz", ssl=context or True, server_hostname=name) as answer,
        ):
            return Page(await answer.text())
    except (ForwardFailedError, aiohttp.ClientError, OSError, TimeoutError) as exc:
        return Page("", str(exc) or type(exc).__name__)


def check_pages(pages: Mapping[str, Page]) -> list[Finding]:
    """A finding for each thing that a broker says a person has to act on."""
    findings: list[Finding] = []
    for pod, page in pages.items():
        if page.problem:
            findings.append(unknown(f"broker {pod}", f"it was not asked: {page.problem}", f"kubectl logs {pod}"))
        for trouble, text in troubles.read(page.text):
            finding = bad if trouble is not troubles.COORDINATOR_REFUSES else warning
            findings.append(finding(f"broker {pod}", trouble.line(text), trouble.remedy))
    return findings or [well("brokers", f"{len(pages)} name no trouble")]


async def examine_pages(connection: Connection, kube: Kube, look: Look) -> list[Finding]:
    """`read_pages` and `check_pages`; that nothing could be read is a finding as well."""
    try:
        return check_pages(await read_pages(connection, kube, look))
    except PluginError as exc:
        return [unknown("brokers", str(exc), "a role that may get this Secret, or --offline")]


def draw_troubles(findings: Sequence[Finding]) -> list[Text]:
    """Lines for the picture of a cluster: only what is not well."""
    return [
        Text.assemble((f"{finding.about}: ", "red"), f"{finding.text}\n    to do: {finding.remedy}")
        for finding in findings
        if finding.remedy
    ]
