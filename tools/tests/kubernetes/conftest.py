"""Tests that kill nodes and take clusters down run only when they are asked for by their mark."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip them in a run that does not say `-m kubernetes`."""
    if "kubernetes" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("kubernetes") is not None and item.path.parent.name == "kubernetes":
            item.add_marker(pytest.mark.skip(reason="kills nodes: ask for it with -m kubernetes"))
