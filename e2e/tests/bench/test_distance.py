"""LATENCY and JITTER: what the fault suite, the demos and the benchmarks make of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from seriatim_local import LinkDelay

from e2e.bench.load import setup
from e2e.demo.settings import read_settings as read_demo
from e2e.demo_orders.settings import read_settings as read_orders
from e2e.distance import JITTER_SHARE, DistanceError, read_delay, told
from e2e.faults.settings import read_settings
from e2e.usage import SettingsError


@pytest.mark.parametrize(
    ("environment", "delay"),
    [
        ({}, None),
        ({"LATENCY": ""}, None),
        ({"LATENCY": "0"}, LinkDelay(0.0)),
        ({"LATENCY": "25"}, LinkDelay(0.025, 0.1)),
        ({"LATENCY": "25", "JITTER": "0"}, LinkDelay(0.025)),
        ({"LATENCY": "0.5", "JITTER": "3"}, LinkDelay(0.0005, 0.003)),
        ({"LATENCY": "9000"}, LinkDelay(9.0, 10.0)),
    ],
)
def test_the_delay_of_an_environment(environment: dict[str, str], delay: LinkDelay | None) -> None:
    assert read_delay(environment, JITTER_SHARE) == delay


@pytest.mark.parametrize("environment", [{"LATENCY": "25ms"}, {"LATENCY": "-1"}, {"LATENCY": "10001"}, {"JITTER": "3"}])
def test_a_delay_without_a_meaning_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(DistanceError, match=next(iter(environment))):
        read_delay(environment)


def test_a_title_says_how_far_apart_the_processes_are() -> None:
    assert told(read_delay({})) == ""
    assert told(read_delay({"LATENCY": "25", "JITTER": "100"})) == ", links of 25ms+100ms each way"


def test_a_distance_of_the_fault_suite_is_that_of_the_proxy() -> None:
    settings = read_settings({"LATENCY": "25"})
    assert (settings.delay, settings.network) == (LinkDelay(0.025, 0.1), "proxy")
    assert (read_settings({}).delay, read_settings({}).network) == (LinkDelay(0.0), "auto")
    with pytest.raises(SettingsError, match="LATENCY needs NETWORK=proxy"):
        read_settings({"LATENCY": "25", "NETWORK": "namespaces"})
    with pytest.raises(SettingsError, match="LATENCY is a number of ms"):
        read_settings({"LATENCY": "far"})


def test_a_distance_of_the_demos() -> None:
    assert read_demo({"LATENCY": "25"}).delay == read_orders({"LATENCY": "25"}).delay == LinkDelay(0.025, 0.1)
    assert not read_demo({}).delay
    with pytest.raises(SettingsError, match="LATENCY is a number of ms"):
        read_demo({"LATENCY": "far"})


@pytest.mark.parametrize(("latency", "proxy", "delay"), [("", False, 0.0), ("0", True, 0.0), ("25", True, 0.025)])
async def test_a_cluster_of_the_benchmarks_has_the_proxy_if_asked(
    latency: str, proxy: bool, delay: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    class Cluster:
        bootstrap = ("127.0.0.1:1",)

    @asynccontextmanager
    async def started(_directory: Path, **options: object) -> AsyncIterator[Cluster]:
        asked.extend((options["proxy"], options["delay"]))
        yield Cluster()

    monkeypatch.setattr(setup, "LocalCluster", started)
    monkeypatch.setenv("LATENCY", latency)
    async with setup.bench_cluster(tmp_path, 1):
        pass
    assert asked == [proxy, LinkDelay(delay)]
