"""One Spark session and one cluster of broker processes for all tests of this folder: each takes seconds to start."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import structlog
from seriatim import sync
from seriatim_local import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
START_DEADLINE_S = 60.0
TEST_DEADLINE_S = 400.0
"""Some tests start JVMs. And a test that is cut off leaves Spark's connection unusable for those after it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs Spark; what Spark's own code warns of is not ours."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("default"))
            item.add_marker(pytest.mark.timeout(TEST_DEADLINE_S))


class Brokers:
    """A local cluster, run in a thread of its own: Spark's calls wait."""

    def __init__(self, directory: Path, *, tls: bool = False) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()
        self._cluster = LocalCluster(
            directory, groups=1 if tls else 2, members=2, proxy=False, name="spark", tls=tls,
            broker_options=("--set", "retention_look_s=0.2"),
        )  # fmt: skip
        self.run(self._cluster.start())
        self.run(self._cluster.wait_ready())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run in the cluster's thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(START_DEADLINE_S)

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return ",".join(self._cluster.bootstrap)

    @property
    def client_files(self) -> dict[str, str]:
        """The source's options for TLS."""
        assert self._cluster.tls is not None
        files = self._cluster.tls.client
        return {"tlsCa": str(files.ca), "tlsCert": str(files.cert), "tlsKey": str(files.key)}

    def kill(self, *victims: str) -> None:
        """Kill brokers at the same moment."""
        self.run(self._cluster.kill(*victims))

    def whole(self) -> None:
        """All brokers run and are ready."""
        self.run(self._cluster.start_again("brokers"))
        self.run(self._cluster.wait_ready())

    def close(self) -> None:
        """End all."""
        self.run(self._cluster.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Two groups of two brokers."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    found = Brokers(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def client(brokers: Brokers) -> Iterator[sync.Client]:
    """A client of the cluster."""
    with sync.Client.connect(brokers.bootstrap) as found:
        yield found


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores; a task is tried twice."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    found = (
        SparkSession.builder.master("local[2,2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.log.level", "ERROR")
        .config("spark.python.authenticate.socketTimeout", "60s")  # for a worker to answer, on a busy machine
        .config("spark.task.maxDirectResultSize", "1k")  # what tasks send the driver goes as if it were large
        .getOrCreate()
    )
    yield found
    found.stop()
