"""The entry point of a container of the image `spark`: `python -m seriatim_spark.container ROLE ...`.

Spark starts the pods of an application with `driver ...` or `executor` as arguments, and with other values in
environment variables. Their names are those of Spark 4. All other arguments are run as a command.

This module uses only the standard library, because an executor needs no Python packages until its first task.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

EXECUTOR_CLASS: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
JAVA_OPTION: Final = "SPARK_JAVA_OPT_"
"""The names of variables with an option for the executor's Java begin with this. A number follows."""

EXECUTOR_ARGUMENTS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
WRONG_USE: Final = 2


class MissingVariableError(Exception):
    """Spark did not set a variable that the role needs."""


def program(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that the container runs.

    Args:
        arguments: The arguments of the container.
        environment: The environment of the container.

    Raises:
        MissingVariableError: A variable that the role needs is not set.
    """
    if not arguments:
        return ["python3", "-m", "seriatim_spark", "--help"]
    role, *rest = arguments
    if role == "driver":
        return _driver(rest, environment)
    if role == "executor":
        return _executor(environment)
    return list(arguments)


def _driver(rest: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    address = _said(environment, "SPARK_DRIVER_BIND_ADDRESS")
    return [
        f"{_said(environment, 'SPARK_HOME')}/bin/spark-submit",
        "--conf", f"spark.driver.bindAddress={address}",
        "--conf", f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}",
        "--deploy-mode", "client",
        *rest,
    ]  # fmt: skip


def _executor(environment: Mapping[str, str]) -> list[str]:
    memory = _said(environment, "SPARK_EXECUTOR_MEMORY")
    given = {
        int(name[len(JAVA_OPTION) :]): value
        for name, value in environment.items()
        if name.startswith(JAVA_OPTION) and name[len(JAVA_OPTION) :].isdecimal()
    }
    home = _said(environment, "SPARK_HOME")
    classes = [
        environment.get("SPARK_CONF_DIR") or f"{home}/conf",
        environment.get("SPARK_CLASSPATH", ""),
        f"{home}/jars/*",
        environment.get("SPARK_EXTRA_CLASSPATH", ""),
        environment.get("SPARK_DIST_CLASSPATH", ""),
    ]
    java = f"{environment['JAVA_HOME']}/bin/java" if environment.get("JAVA_HOME") else "java"
    said = [word for name, variable in EXECUTOR_ARGUMENTS.items() for word in (name, _said(environment, variable))]
    return [
        java,
        *(given[number] for number in sorted(given)),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(part for part in classes if part),
        EXECUTOR_CLASS,
        *said,
    ]


def _said(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise MissingVariableError(
            f"the variable {name} is not set: `driver` and `executor` are for pods that Spark itself starts"
        )
    return value


def main() -> None:
    """Replace this process by that command."""
    try:
        argv = program(sys.argv[1:], os.environ)
    except MissingVariableError as exc:
        sys.stderr.write(f"seriatim-spark: {exc}\n")
        sys.exit(WRONG_USE)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - tini is in front of it, and no shell is wanted
    except OSError as exc:
        sys.stderr.write(f"seriatim-spark: {argv[0]} cannot be run: {exc.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
