"""The page that documents the errors says what the catalogue says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from seriatim_api.errors import CATALOGUE, SeriatimError

_DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(name="generator", scope="module")
def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_errors", _DOCS / "generate_errors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_current(generator: ModuleType) -> None:
    page = (_DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    assert page == generator.render(), "run: python docs/generate_errors.py"


def test_page_has_one_row_for_each_number() -> None:
    page = (_DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", page, flags=re.MULTILINE)
    assert rows == [(str(number), kind.__name__) for number, kind in CATALOGUE.items()]


def test_check_notices_a_stale_page(
    generator: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generator, "PAGE", tmp_path / "errors.md")
    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    stale = generator.render().replace("| 200 |", "| 299 |")
    generator.PAGE.write_text(stale, encoding="utf-8")
    assert generator.main(["--check"]) == 1
    assert "not current" in capsys.readouterr().err


def test_every_error_says_what_it_means() -> None:
    silent = [kind.__name__ for kind in CATALOGUE.values() if not _own_docstring(kind)]
    assert not silent


def _own_docstring(kind: type[SeriatimError]) -> str:
    return (kind.__dict__.get("__doc__") or "").strip()
