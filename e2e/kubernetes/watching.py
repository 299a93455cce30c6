"""Prometheus beside a run of the suite (`make e2e WATCH=1`): it reads all pods, and at the end the chart's dashboards
are drawn from what it has.

It reaches the pods through the API server, as the user of the kubeconfig, so it needs no pod of its own. Its labels are
those of the chart's PodMonitors.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml
from urllib3.exceptions import HTTPError

from e2e.bench import servers
from e2e.kubernetes.pictures import NotDrawnError, draw_dashboards
from e2e.kubernetes.place import Place
from e2e.kubernetes.sight import PORTS
from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import ROOT
from tools.ports import free_port

PROMETHEUS: Final = ROOT / ".tools" / "bin" / "prometheus"
READY: Final = b"Server is ready to receive web requests"

SCRAPE_S: Final = 5
LOOK_S: Final = 2.0
"""Seconds between two looks at which pods there are."""


@asynccontextmanager
async def watched(place: Callable[[], Place], directory: Path, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Run Prometheus for as long as the block lasts. Then draw the dashboards into `directory`.

    The run does not fail if they cannot be drawn, because its results are worth more.

    Args:
        place: Gives the namespace whose pods are read now. A run gets a new one if a case breaks its cluster.
        directory: Gets the pictures, and Prometheus's log and data.
        say: Is told why something is not drawn.

    Raises:
        ServerError: Prometheus did not start. `make prometheus` builds it.
    """
    if not PROMETHEUS.exists():
        raise servers.ServerError("there is no .tools/bin/prometheus: make prometheus builds it (with Go)")
    began = time.time()
    port, targets, settings = free_port(), directory / "targets.json", directory / "prometheus.yaml"
    log = directory / "prometheus.log"
    try:
        await asyncio.to_thread(configure, place().cluster.kubeconfig, settings, targets)
        running = await servers.start(
            log,
            str(PROMETHEUS),
            f"--config.file={settings}",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--storage.tsdb.path={directory / 'data'}",
        )
        finding = asyncio.create_task(_find_pods(place, targets), name="pods")
        try:
            await servers.until_ready("Prometheus", running, log, READY)
            settings.unlink()  # Prometheus has read it, and a key is in it
            yield
            if finding.done():
                say(f"Prometheus was not told of new pods to the end: {finding.exception()!r}")
            with _told(say):
                await asyncio.to_thread(draw_dashboards, f"http://127.0.0.1:{port}", directory, began, time.time())
        finally:
            finding.cancel()
            await asyncio.gather(finding, return_exceptions=True)
            await servers.end(running)
    finally:
        settings.unlink(missing_ok=True)


@contextmanager
def _told(say: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except (HTTPError, NotDrawnError) as error:
        say(f"the dashboards are not drawn: {error}")


def configure(kubeconfig: Path, file: Path, targets: Path) -> None:
    """Write the settings, and an empty file of targets. The kubeconfig's key is in the settings, so only the owner may
    read them.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    targets.write_text("[]")
    known = yaml.safe_load(kubeconfig.read_text())
    server, user = known["clusters"][0]["cluster"], known["users"][0]["user"]
    settings = {
        "global": {"scrape_interval": f"{SCRAPE_S}s"},
        "scrape_configs": [
            {
                "job_name": "pods",
                "scheme": "https",
                "honor_labels": True,
                "tls_config": {
                    "ca": _decoded(server, "certificate-authority"),
                    "cert": _decoded(user, "client-certificate"),
                    "key": _decoded(user, "client-key"),
                },
                "file_sd_configs": [{"files": [str(targets)], "refresh_interval": f"{SCRAPE_S}s"}],
            }
        ],
    }
    file.unlink(missing_ok=True)
    file.touch(mode=0o600, exist_ok=False)
    file.write_text(yaml.safe_dump(settings))


def _decoded(entry: Mapping[str, str], name: str) -> str:
    """A certificate or key of a kubeconfig, which has it in base64 or names a file."""
    if f"{name}-data" in entry:
        return base64.b64decode(entry[f"{name}-data"]).decode()
    return Path(entry[name]).read_text()


async def _find_pods(place: Callable[[], Place], targets: Path) -> None:
    """Keep the file of targets as the pods are."""
    server = yaml.safe_load(place().cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    while True:
        now = place()
        with suppress(ClusterError):
            found = [target for pod in await now.list("pods") for target in target_of(pod, server, now.namespace)]
            await asyncio.to_thread(_replace, targets, json.dumps(found))
        await asyncio.sleep(LOOK_S)


def _replace(file: Path, text: str) -> None:
    aside = file.with_suffix(".new")
    aside.write_text(text)
    aside.replace(file)


def target_of(pod: Mapping[str, Any], server: str, namespace: str) -> list[dict[str, object]]:
    """What Prometheus reads of a pod: nothing, or one page."""
    labels, name = pod["metadata"].get("labels", {}), pod["metadata"]["name"]
    component = labels.get("app.kubernetes.io/component", "")
    if component not in PORTS or pod["metadata"].get("deletionTimestamp"):
        return []
    more = {"namespace": namespace, "pod": name, "job": f"{namespace}/seriatim-{component}", "instance": name}
    if component == "broker":
        more |= {"seriatim_cluster": labels["seriatim.dev/cluster"], "seriatim_group": labels["seriatim.dev/group"]}
    path = f"/api/v1/namespaces/{namespace}/pods/{PORTS[component].format(name)}/proxy/metrics"
    return [{"targets": [server.partition("://")[2]], "labels": {**more, "__metrics_path__": path}}]
