"""The dashboard of pipelines asks for metrics that a driver with the chart's properties reports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
NAME: Final = re.compile(r"\bmetrics_[A-Za-z_]+")
STREAM: Final = "metrics_seriatim_driver_spark_streaming_"

DEADLINE_S: Final = 120.0

PROGRAM: Final = """
import faulthandler, json, sys, time, urllib.request
from pyspark.sql import SparkSession

faulthandler.dump_traceback_later(float(sys.argv[2]), exit=True)
wanted = set(sys.argv[3:])
builder = SparkSession.builder.master("local[1]").config("spark.ui.port", "0")
for key, value in json.loads(sys.argv[1]).items():
    builder = builder.config(key, value)
session = builder.getOrCreate()
stream = session.readStream.format("rate").load().writeStream.queryName("archive").foreachBatch(lambda rows, no: None)
query = stream.start()
while wanted:  # executors report some with their next heartbeat
    for path in ("/metrics/prometheus", "/metrics/executors/prometheus"):
        with urllib.request.urlopen(session.sparkContext.uiWebUrl + path, timeout=30) as answer:
            wanted -= {line.split("{")[0] for line in answer.read().decode().splitlines()}
    print("not reported:", sorted(wanted), file=sys.stderr, flush=True)
    time.sleep(0.5)
query.stop()
session.stop()
"""


def _properties() -> dict[str, str]:
    """What the chart gives each driver, except what comes from its values."""
    template = (ROOT / "templates" / "spark" / "_pipeline.tpl").read_text()
    lines = template.split('define "seriatim.spark.properties"')[1].split("{{- end }}")[0].splitlines()
    return dict(line.split(" ", 1) for line in lines if line.startswith("spark.") and "{{" not in line)


def _asked_for() -> set[str]:
    panels = json.loads((ROOT / "files" / "dashboards" / "spark.json").read_text())["panels"]
    text = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    return set(NAME.findall(text.replace(STREAM + "[a-z]+_", STREAM + "archive_")))


@pytest.mark.slow
def test_a_driver_tells_what_the_dashboard_asks_for() -> None:
    properties = {
        **_properties(), "spark.ui.enabled": "true", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.executor.heartbeatInterval": "1s",
    }  # fmt: skip
    asked_for = sorted(_asked_for())
    assert len(asked_for) > 8, asked_for
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(properties), str(DEADLINE_S), *asked_for],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
