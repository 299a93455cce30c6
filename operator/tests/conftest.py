"""One real API server for all tests of the operator that need one: see `api_server.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from seriatim_operator.cluster.connection import connect
from seriatim_operator.cluster.kube import Kube

from .api_server import PROGRAMS, ROOT, ApiServer, find_program, running_api_server


@pytest.fixture(scope="session")
def bare_api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server that knows nothing of us yet."""
    found = {name: path for name in PROGRAMS if (path := find_program(name)) is not None}
    missing = [name for name in PROGRAMS if name not in found]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: `make e2e-cluster` builds Kubernetes, `make tools` etcd (both need Go)")
    with running_api_server(tmp_path_factory.mktemp("api-server"), found) as server:
        yield server


@pytest.fixture(scope="session")
def api_server(bare_api_server: ApiServer) -> ApiServer:
    """An API server that serves our kinds, by the committed definitions."""
    bare_api_server.kubectl("apply", "-f", str(ROOT / "crds"))
    bare_api_server.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(ROOT / "crds"))
    return bare_api_server


@pytest.fixture
def kube(api_server: ApiServer) -> Iterator[Kube]:
    """The operator's own client of that API server."""
    made = Kube(configuration=connect(str(api_server.kubeconfig), None).configuration)
    yield made
    made.close()
