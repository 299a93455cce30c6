"""A driver's metrics: what is known is reported, what is not known is left out, and nothing else listens."""

from __future__ import annotations

import socket
import threading
import urllib.request

import pytest
from seriatim_api.ids import make_offset
from seriatim_spark.errors import OptionError
from seriatim_spark.offsets import TopicPlaces
from seriatim_spark.pipelines.metrics import LagWatch, PipelineMetrics, address_of, served
from seriatim_spark.reading.lag import LagCounter

from tools.ports import free_port

from .fake_brokers import FakeBrokers, FakePartition, FakeTopic

DEADLINE_S = 20.0


def told(listen: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{listen}/metrics", timeout=DEADLINE_S) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines if not name.endswith("_created")}


def test_a_scrape_has_what_is_known_and_five_series_at_most() -> None:
    listen = f"127.0.0.1:{free_port()}"
    with served(listen) as metrics:
        assert told(listen) == {"seriatim_pipeline_rows_read_total": 0, "seriatim_pipeline_rows_written_total": 0}
        metrics.read(70)
        metrics.read(5)
        metrics.wrote(74)
        metrics.lags([3, 10, 0])
        found = told(listen)
        at = found.pop("seriatim_pipeline_progress_timestamp_seconds")
        assert found == {
            "seriatim_pipeline_rows_read_total": 75, "seriatim_pipeline_rows_written_total": 74,
            "seriatim_pipeline_lag_messages": 13, "seriatim_pipeline_lag_messages_max": 10,
        }  # fmt: skip
        metrics.idle()
        metrics.lags(None)
        found = told(listen)
        assert found["seriatim_pipeline_progress_timestamp_seconds"] >= at
        assert "seriatim_pipeline_lag_messages" not in found
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, port = address_of(listen)
        again.bind((host, port))


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port()))
        other.listen()
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(OptionError, match=r"metrics cannot be served at .*--metrics-listen"), served(listen):
            pytest.fail("nothing can listen there")


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:7103", ("127.0.0.1", 7103)), ("[::1]:7103", ("::1", 7103)), ("fd00::7:7103", ("fd00::7", 7103))],
)
def test_an_address_has_a_host_of_either_family_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["7103", ":7103", "host:", "host:port", "host:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        address_of(text)


class Told(PipelineMetrics):
    """Says when it was sent a lag."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[list[int] | None] = []
        self.changed = threading.Condition()

    def lags(self, rows: object) -> None:
        with self.changed:
            self.heard.append(None if rows is None else list(rows))  # type: ignore[call-overload]
            self.changed.notify_all()

    def wait_for(self, what: list[int] | None) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: what in self.heard, DEADLINE_S), self.heard


def test_brokers_are_asked_again_while_the_query_stands_still_and_an_error_hides_the_lag() -> None:
    metrics, topic = Told(), FakeTopic("one", {0: FakePartition([10])})
    watch = LagWatch(metrics, LagCounter(FakeBrokers(orders=topic)), every_s=0.01)
    try:
        watch.has_read({"orders": TopicPlaces("one", {0: make_offset(1, 4)})})
        metrics.wait_for([6])
        topic.partitions[0].segments[0] += 30
        metrics.wait_for([36])
        watch.has_read({"orders": TopicPlaces("one", {0: make_offset(1, 40)})})
        metrics.wait_for([0])
        topic.incarnation = "two"
        metrics.wait_for(None)
    finally:
        watch.close()
