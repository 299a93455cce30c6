"""What the operator's process imports: others wait for the memory and the processors that it takes."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import sys
from seriatim_operator.commands import operator
try:
    operator(["run"], standalone_mode=False)
except SystemExit as exit:
    print(exit.code, "kopf" in sys.modules, "rich" in sys.modules)
"""


def test_an_operator_leaves_out_what_would_only_draw_tracebacks() -> None:
    environment = os.environ | {"SERIATIM_OPERATOR_CLUSTER_DOMAIN": "no domain"}  # refused, once all is imported
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert done.stdout.split() == ["2", "True", "False"], done


def test_kubectl_seriatim_imports_what_asks_brokers_only_when_it_asks() -> None:
    heavy = {"aiohttp", "cryptography", "grpc"}
    program = f"import sys, seriatim_operator.plugin.main; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]", "a third of the processor time of --help and of all that takes --offline"


def test_the_help_of_seriatim_shows_the_operators_line_without_the_operators_libraries() -> None:
    heavy = {"grpc", "kopf", "kubernetes", "pydantic", "yaml"}
    program = f"import sys, seriatim_operator.commands; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]", "most of the time of `seriatim --help`"
