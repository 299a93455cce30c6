"""Where the packages of the base image come from."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tools.kubernetes import base_image
from tools.kubernetes.base_image import MIRROR_SETTING, SUITE, mirror, mirror_of_sources
from tools.kubernetes.errors import MachineError

ROOT = Path(__file__).resolve().parents[3]

OTHERS = """\
http://packages.test/security/ bookworm-security main Debian
http://tools.test/apt/ stable main Tools
http://packages.test/debian/ bookworm-updates main Debian
"""


@pytest.mark.parametrize(
    ("sources", "wanted"),
    [
        (f"{OTHERS}http://packages.test/debian/ bookworm main Debian\n", "http://packages.test/debian"),
        ("https://new.test/debian/ bookworm main\n", "https://new.test/debian"),  # `apt-get update` did not run yet
        ("file:/srv/debian/ bookworm contrib Debian\nfile:/srv/debian/ bookworm main Debian\n", "file:/srv/debian"),
        (f"{OTHERS}http://packages.test/debian/ trixie main Debian\n", "http://packages.test/debian"),
        (
            "http://a.test/debian/ trixie main Debian\nhttp://b.test/debian/ bookworm main Debian\n",
            "http://b.test/debian",
        ),
    ],
)
def test_the_mirror_is_the_one_of_this_machine(sources: str, wanted: str) -> None:
    assert mirror_of_sources(sources) == wanted


@pytest.mark.parametrize(
    "sources",
    [
        "",
        OTHERS,
        "http://archive.test/ubuntu/ noble main Ubuntu\n",
        "mirror+file:/etc/apt/m.list bookworm main Debian\n",
    ],
)
def test_a_machine_without_a_source_of_debian_is_told_of_the_setting(sources: str) -> None:
    with pytest.raises(MachineError, match=f"mirror of {SUITE} .* {MIRROR_SETTING}"):
        mirror_of_sources(sources)


def test_the_setting_wins_and_apt_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRROR_SETTING, "http://set.test/debian")
    monkeypatch.setattr(base_image, "_sources", lambda: pytest.fail("apt was asked"))
    assert mirror() == "http://set.test/debian"


def test_without_the_setting_the_sources_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for empty in (None, ""):
        if empty is None:
            monkeypatch.delenv(MIRROR_SETTING, raising=False)
        else:
            monkeypatch.setenv(MIRROR_SETTING, empty)
        monkeypatch.setattr(base_image, "_sources", lambda: "http://own.test/debian/ bookworm main Debian")
        assert mirror() == "http://own.test/debian"


def test_no_mirror_stands_in_code_or_pages() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    mirrors = re.compile(rb"https?://[\w.-]+[^\s\"'`)]*/debian\b")
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path != Path(__file__) and path.is_file() and mirrors.search(path.read_bytes()):
            found.append(name)
    assert found == []
