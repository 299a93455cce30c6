"""What is said before anything is downloaded, if Java is missing or too old."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_java


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 1),
        ("Unrecognized option", None),
    ],
)
def test_the_version_is_read(told: str, version: int | None) -> None:
    assert check_java.version_of(told) == version


@pytest.mark.parametrize("told", [None, 'openjdk version "11.0.2"', "broken"])
def test_a_java_that_will_not_do_is_named(
    told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if told is not None:
        program = tmp_path / "bin" / "java"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho '{told}' >&2\n")
        program.chmod(0o755)
    assert check_java.main() == 1
    assert "Spark needs Java 17" in capsys.readouterr().err
