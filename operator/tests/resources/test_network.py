"""Which pods may reach the brokers, and which the brokers may reach, in a network that enforces policies."""

from __future__ import annotations

from typing import Any

import pytest

from .network import Place, may_connect, pod
from .objects import children

BROKER = {"app__name": "seriatim", "app__component": "broker"}
SELF = pod("shop", app__instance="orders", **BROKER)
PEER = pod("shop", "10.1.0.2", app__instance="orders", **BROKER)
OTHER_CLUSTER = pod("shop", app__instance="bills", **BROKER)
SAME_NAME_ELSEWHERE = pod("bank", app__instance="orders", **BROKER)
OPERATOR = pod("seriatim-system", app__name="seriatim", app__component="operator")
FALSE_OPERATOR = pod("bank", app__name="seriatim", app__component="operator")
SHOP = pod("shop", app__name="web")
CHOSEN = pod("shop", own__client="true")
CHOSEN_ELSEWHERE = pod("bank", own__client="true")
PROMETHEUS = pod("monitoring", app__name="prometheus")
OUTSIDE = Place("203.0.113.9")
ETCD_BY_ADDRESS = Place("10.0.0.7")
ETCD_BY_NAME = pod("etcd", app__name="etcd")
NAMES = Place("169.254.20.10")

SELECTOR = {"networkPolicy": {"clientSelector": {"matchLabels": {"seriatim.dev/client": "true"}}}}
BY_EXPRESSION = {
    "networkPolicy": {"clientSelector": {"matchExpressions": [{"key": "seriatim.dev/client", "operator": "Exists"}]}}
}


def policy_of(**spec: Any) -> dict[str, Any]:
    return next(made for made in children(**spec).shared() if made["kind"] == "NetworkPolicy")


@pytest.mark.parametrize(
    ("source", "port", "open_to_all", "chosen_only"),
    [
        (PEER, 7100, True, True),
        (OPERATOR, 7100, True, True),
        (SHOP, 7100, True, False),
        (CHOSEN, 7100, True, True),
        (CHOSEN_ELSEWHERE, 7100, True, False),
        (FALSE_OPERATOR, 7100, True, False),
        (OTHER_CLUSTER, 7100, True, False),
        (SAME_NAME_ELSEWHERE, 7100, True, False),
        (PROMETHEUS, 7101, True, True),
        (PROMETHEUS, 7100, True, False),
        (OUTSIDE, 7100, False, False),
        (OUTSIDE, 7101, False, False),
        (PEER, 7103, True, True),
        (OPERATOR, 7103, False, False),
        (CHOSEN, 7103, False, False),
        (OTHER_CLUSTER, 7103, False, False),
        (OUTSIDE, 7103, False, False),
        (SHOP, 7104, True, False),
        (CHOSEN, 7104, True, True),
        (CHOSEN_ELSEWHERE, 7104, True, False),
        (OPERATOR, 7104, True, False),
        (PEER, 7104, False, False),
        (OUTSIDE, 7104, False, False),
        (PEER, 22, False, False),
        (CHOSEN, 2379, False, False),
    ],
)
def test_who_may_reach_a_broker(source: Place, port: int, open_to_all: bool, chosen_only: bool) -> None:
    assert may_connect(policy_of(), source, SELF, port) == open_to_all
    for selecting in (SELECTOR, BY_EXPRESSION):
        assert may_connect(policy_of(**selecting), source, SELF, port) == chosen_only


@pytest.mark.parametrize(
    ("target", "port", "protocol", "may"),
    [
        (PEER, 7100, "TCP", True),
        (PEER, 7103, "TCP", True),
        (PEER, 7101, "TCP", False),
        (PEER, 7104, "TCP", False),
        (ETCD_BY_ADDRESS, 2379, "TCP", True),
        (ETCD_BY_ADDRESS, 22, "TCP", False),
        (ETCD_BY_NAME, 2380, "TCP", False),
        (NAMES, 53, "UDP", True),
        (NAMES, 53, "TCP", True),
        (NAMES, 443, "TCP", False),
        (OUTSIDE, 443, "TCP", False),
        (OUTSIDE, 6443, "TCP", False),
        (SHOP, 8080, "TCP", False),
    ],
)
def test_whom_a_broker_may_reach(target: Place, port: int, protocol: str, may: bool) -> None:
    policy = policy_of(etcd={"endpoints": ["10.0.0.7:2379"]})
    assert may_connect(policy, SELF, target, port, protocol) == may


def test_etcd_by_name_is_let_through_by_its_port_and_by_address_alone() -> None:
    by_name = policy_of(etcd={"endpoints": ["etcd-0.etcd:2379"]})
    assert may_connect(by_name, SELF, ETCD_BY_NAME, 2379)
    by_address = policy_of(etcd={"endpoints": ["10.0.0.7:2379"]})
    assert not may_connect(by_address, SELF, ETCD_BY_NAME, 2379)


def test_pods_of_others_are_not_touched() -> None:
    for target in (SHOP, OTHER_CLUSTER, SAME_NAME_ELSEWHERE):
        assert may_connect(policy_of(**SELECTOR), OUTSIDE, target, 7100)
