"""What a container of Spark's image becomes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from seriatim_spark.container import MissingVariableError, program

EXECUTOR = {
    "SPARK_HOME": "/opt/spark",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-7",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "archive-exec-3",
}


def test_a_driver_is_spark_submit_in_client_mode_with_what_it_is_given() -> None:
    environment = {"SPARK_HOME": "/opt/spark", "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1"}
    argv = program(["driver", "--properties-file", "/opt/spark/conf/spark.properties", "local:///a.py"], environment)
    assert argv[0] == "/opt/spark/bin/spark-submit"
    assert "spark.driver.bindAddress=10.0.0.1" in argv
    assert argv[argv.index("--deploy-mode") + 1] == "client"
    assert argv[-3:] == ["--properties-file", "/opt/spark/conf/spark.properties", "local:///a.py"]


def test_an_executor_is_java_with_its_options_in_the_order_of_their_numbers() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in (10, 2, 0)} | {"SPARK_JAVA_OPT_X": "-Dx"}
    argv = program(["executor"], EXECUTOR | options | {"JAVA_HOME": "/usr/lib/java"})
    assert argv[:6] == ["/usr/lib/java/bin/java", "-Dn=0", "-Dn=2", "-Dn=10", "-Xms512m", "-Xmx512m"]
    assert argv[argv.index("-cp") + 1] == "/opt/spark/conf:/opt/spark/jars/*"
    said = argv[argv.index("-cp") + 3 :]
    assert dict(zip(said[::2], said[1::2], strict=True)) == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"], "--executor-id": "3", "--cores": "2", "--app-id": "spark-7",
        "--hostname": "10.0.0.2", "--resourceProfileId": "0", "--podName": "archive-exec-3",
    }  # fmt: skip


def test_classes_of_the_configuration_come_first_and_more_of_them_last() -> None:
    more = {"SPARK_CONF_DIR": "/conf", "SPARK_CLASSPATH": "/mine", "SPARK_EXTRA_CLASSPATH": "/extra"}
    argv = program(["executor"], EXECUTOR | more)
    assert argv[0] == "java"
    assert argv[argv.index("-cp") + 1] == "/conf:/mine:/opt/spark/jars/*:/extra"


@pytest.mark.parametrize("name", ["SPARK_EXECUTOR_ID", "SPARK_EXECUTOR_MEMORY", "SPARK_HOME"])
def test_what_spark_did_not_say_is_named(name: str) -> None:
    with pytest.raises(MissingVariableError, match=name):
        program(["executor"], {key: value for key, value in EXECUTOR.items() if key != name})


def test_anything_else_is_run_as_it_stands() -> None:
    assert program(["spark-submit", "--version"], {}) == ["spark-submit", "--version"]
    done = subprocess.run(
        [sys.executable, "-m", "seriatim_spark.container", "no-such-program"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 127
    assert "no-such-program cannot be run" in done.stderr


def test_a_driver_that_spark_did_not_start_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "seriatim_spark.container", "driver"],
        capture_output=True,
        text=True,
        check=False,
        env={},
    )
    assert done.returncode == 2
    assert "SPARK_DRIVER_BIND_ADDRESS is not set" in done.stderr
