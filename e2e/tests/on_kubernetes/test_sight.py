"""What a look makes of pages of metrics and of rules."""

from __future__ import annotations

import os

import pytest

from e2e.kubernetes.sight import PROMTOOL, Sight, alerts_of, changed, names_in, names_on, series_of
from tools.chart import find_helm

PAGE = """\
# HELP seriatim_ready Whether it serves
# TYPE seriatim_ready gauge
seriatim_ready{broker="g0-0"} 1.0
# TYPE seriatim_switch_seconds histogram
# TYPE seriatim_refused_total counter
"""


def test_a_series_has_the_labels_of_its_pod_and_its_own_win() -> None:
    found = series_of(PAGE, {"namespace": "shop", "broker": "other"})
    assert found == {'seriatim_ready{broker="g0-0",namespace="shop"}': 1.0}


def test_a_page_has_the_names_of_series_that_did_not_count_yet() -> None:
    assert names_on(PAGE) == {
        "seriatim_ready", "seriatim_refused_total", "seriatim_switch_seconds_bucket", "seriatim_switch_seconds_sum",
        "seriatim_switch_seconds_count",
    }  # fmt: skip


def test_names_of_metrics_are_found_in_an_expression_and_labels_and_values_are_not() -> None:
    expression = (
        'sum by (seriatim_cluster) (rate(seriatim_x_total{a="seriatim_y"}[5m])) > 0 or up{seriatim_group!=""} == 0'
    )
    assert names_in(expression) == {"seriatim_x_total", "up"}


def test_only_states_that_differ_are_told() -> None:
    before = Sight(0.0, {}, (), {'up{pod="a"}': 1.0, "seriatim_ready": 1.0, "seriatim_appended_bytes_total": 1.0})
    after = Sight(0.0, {}, (), {'up{pod="a"}': 0.0, "seriatim_ready": 1.0, "seriatim_appended_bytes_total": 9.0})
    assert changed(before, after) == ['up{pod="a"}: 1 -> 0']


@pytest.mark.skipif(find_helm() is None or not os.access(PROMTOOL, os.X_OK), reason="needs helm and promtool")
def test_alerts_fire_by_the_charts_rules() -> None:
    labels = 'namespace="shop",pod="p0",seriatim_cluster="orders",seriatim_group="g0"'
    leads = 'seriatim_operator_leader{job="shop/seriatim-operator",namespace="shop"}'
    assert alerts_of({f"up{{{labels}}}": 0.0, leads: 1.0}, {}, "shop") == ("SeriatimBrokerDown", "SeriatimGroupDown")
    assert alerts_of({f"up{{{labels}}}": 1.0, leads: 1.0}, {}, "shop") == ()
