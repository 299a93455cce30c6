"""Leaving out a module for as long as a block lasts."""

from __future__ import annotations

import sys

import pytest
from seriatim_api.imports import left_out


def test_it_is_not_found_in_the_block_and_found_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with left_out("colorsys"), pytest.raises(ModuleNotFoundError):
        import colorsys
    import colorsys

    assert colorsys.rgb_to_hsv(0, 0, 0) == (0, 0, 0)


def test_what_is_imported_already_stays() -> None:
    import json

    with left_out("json"):
        assert sys.modules["json"] is json
    assert sys.modules["json"] is json


def test_an_error_in_the_block_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(RuntimeError), left_out("colorsys"):
        raise RuntimeError
    assert "colorsys" not in sys.modules
