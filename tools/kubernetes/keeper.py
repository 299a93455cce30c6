"""The process that offers disks: `python -m tools.kubernetes.keeper STATE`, started by `up`, ended by `down`."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

import kubernetes
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from tools.kubernetes import disks
from tools.kubernetes.layout import Layout, NodeLayout, cache_directory
from tools.kubernetes.node import Node
from tools.kubernetes.processes import Processes

INTERVAL_S: Final = 1.0
REQUEST_TIMEOUT_S: Final = 10
GONE: Final = 404
EXISTS: Final = 409


class Keeper:
    """Looks, plans and acts, once a second."""

    def __init__(self, layout: Layout, api: Any) -> None:
        self._layout = layout
        self._api = api
        self._nodes = [Node(layout, node.number, Processes(layout)) for node in layout.nodes]

    def step(self) -> list[disks.Action]:
        """One look; what was done."""
        running = {node.name: node.layout for node in self._nodes if node.is_running}
        present = {name: _disks_of(node) for name, node in running.items()}
        actions = disks.plan(present, self._volumes())
        for action in actions:
            self._act(action, running[action.node])
        return actions

    def _volumes(self) -> list[disks.Volume]:
        found = self._api.list_persistent_volume(label_selector=disks.LABEL, _request_timeout=REQUEST_TIMEOUT_S)
        return [
            disks.Volume(
                *disks.split_volume_name(volume.metadata.name),
                volume.status.phase or "Pending",
                volume.spec.persistent_volume_reclaim_policy == "Delete",
            )
            for volume in found.items
        ]

    def _act(self, action: disks.Action, node: NodeLayout) -> None:
        match action:
            case disks.Make():
                (node.disks / disks.new_disk()).mkdir(parents=True)
            case disks.Offer(_, disk):
                try:
                    self._api.create_persistent_volume(disks.manifest(node, disk), _request_timeout=REQUEST_TIMEOUT_S)
                except ApiException as error:
                    if error.status != EXISTS:
                        raise
            case disks.Wipe(_, disk):
                # The directory goes first: were the volume first and we died, the data would be offered again.
                shutil.rmtree(node.disks / disk)
                self._delete_volume(node, disk)
            case disks.Withdraw(_, disk):
                self._delete_volume(node, disk)

    def _delete_volume(self, node: NodeLayout, disk: str) -> None:
        try:
            self._api.delete_persistent_volume(disks.volume_name(node.name, disk), _request_timeout=REQUEST_TIMEOUT_S)
        except ApiException as error:
            if error.status != GONE:
                raise


def _disks_of(node: NodeLayout) -> list[str]:
    return sorted(path.name for path in node.disks.glob("disk-*"))


def main() -> int:
    """Run until ended."""
    layout = Layout(Path(sys.argv[1]), cache_directory())
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(layout.kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    keeper = Keeper(layout, kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(configuration)))
    while True:
        try:
            for action in keeper.step():
                print(action, flush=True)
        except (ApiException, HTTPError, OSError) as error:
            print(f"tried again in a second: {error}", file=sys.stderr, flush=True)
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    sys.exit(main())
