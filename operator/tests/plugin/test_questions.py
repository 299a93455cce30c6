"""The question before a drain. `client/tests/cli/test_questions.py` has it on a terminal."""

from __future__ import annotations

import io

import pytest
from seriatim_operator.plugin.errors import PluginError
from seriatim_operator.plugin.main import is_told_to_drain


async def test_a_drain_without_a_terminal_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(PluginError, match=r"g0 is not drained: stdin is no terminal.*add --yes"):
        await is_told_to_drain("g0")
