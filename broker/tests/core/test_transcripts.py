"""The core does what the transcripts say; `transcripts/README.md` explains them."""

from __future__ import annotations

import os
import re
from difflib import unified_diff
from pathlib import Path

import pytest

from .transcripts import Transcript

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
TRACK_RECORD = Path(__file__).parents[3] / "e2e" / "TRACK_RECORD.md"


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_core_does_what_the_transcript_says(path: Path) -> None:
    said = path.read_text(encoding="utf-8")
    done = Transcript().run(said)
    if os.environ.get("REWRITE_TRANSCRIPTS") == "1":
        path.write_text(done, encoding="utf-8")
        return
    difference = unified_diff(said.splitlines(), done.splitlines(), "the transcript", "the core", n=5, lineterm="")
    assert said == done, "\n".join(difference)


def test_the_track_record_names_each_transcript() -> None:
    named = re.findall(r"`([a-z0-9-]+\.txt)`", TRACK_RECORD.read_text(encoding="utf-8"))
    assert sorted(named) == [path.name for path in FILES]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("given broker g0-0\nno_verb 1\n", "in line 2: no_verb 1"),
        ("given broker g0-0\nread_chain one\n", "in line 2: read_chain one"),
        ("given broker g0-0\ng0-1: FenceRequest segment=1\n", "in line 2: g0-1: FenceRequest segment=1"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(text: str, said: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011  # whatever the core or the bench makes of it
        Transcript().run(text)
    assert raised.value.__notes__ == [said]
