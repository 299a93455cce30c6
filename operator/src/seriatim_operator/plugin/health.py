"""Reads `/readyz` of each broker through a port-forward to its pod, and makes findings of its troubles.

A broker that is not ready serves no client, but its admin port answers. The Kubernetes API knows only that the probe
failed, not why. It also does not know of troubles that a ready broker reports.
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
        text: What the broker answered; empty if it did not answer.
        problem: Why the broker did not answer; empty if it did.
    """

    text: str
    problem: str = ""


async def read_pages(connection: Connection, kube: Kube, look: Look) -> dict[str, Page]:
    """The page of each broker whose pod runs, by the pod's name. At most 8 are asked at once, each for at most 10 s.

    Raises:
        PluginError: The Secret with the client certificate cannot be read.
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
    except TimeoutError:
        return Page("", f"it did not answer in {ASK_DEADLINE_S:.0f} s")
    except (ForwardFailedError, aiohttp.ClientError, OSError) as exc:
        return Page("", str(exc) or type(exc).__name__)


def check_pages(pages: Mapping[str, Page]) -> list[Finding]:
    """A finding for each trouble that a broker reports, because an administrator has to act on it."""
    findings: list[Finding] = []
    for pod, page in pages.items():
        if page.problem:
            findings.append(unknown(f"broker {pod}", f"its state is not known: {page.problem}", f"kubectl logs {pod}"))
        for trouble, text in troubles.read(page.text):
            finding = bad if trouble is not troubles.COORDINATOR_REFUSES else warning
            findings.append(finding(f"broker {pod}", trouble.line(text), trouble.remedy))
    return findings or [well("brokers", f"{len(pages)} name no trouble")]


async def examine_pages(connection: Connection, kube: Kube, look: Look) -> list[Finding]:
    """Read the pages and make findings of them. If no page could be read, the only finding says why."""
    try:
        return check_pages(await read_pages(connection, kube, look))
    except PluginError as exc:
        return [unknown("brokers", str(exc), "give your account a role that may get this Secret, or use --offline")]


def draw_troubles(findings: Sequence[Finding]) -> list[Text]:
    """Lines for the picture of a cluster: only the findings that have a remedy."""
    return [
        Text.assemble((f"{finding.about}: ", "red"), f"{finding.text}\n    to do: {finding.remedy}")
        for finding in findings
        if finding.remedy
    ]
