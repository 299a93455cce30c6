"""What others wrote does not reach a terminal as a command."""

from __future__ import annotations

import io
import json

import pytest
from rich.table import Table
from rich.text import Text
from seriatim_api.terminal.consoles import SafeConsole
from seriatim_api.terminal.safe_text import echo, safe_json, safe_text

EVIL = "web\x1b]0;owned\x07-1\x9b2J\r\u202e\u2028\x7f"


def test_control_characters_are_escaped() -> None:
    assert safe_text(EVIL) == "web\\x1b]0;owned\\x07-1\\x9b2J\\r\\u202e\\u2028\\x7f"


@pytest.mark.parametrize("text", ["", "web-1", "Grüße, 世界 ▶ 🙂", "two\nlines\tand a tab", "a\u00a0space"])
def test_other_text_stays(text: str) -> None:
    assert safe_text(text) == text


def test_json_stays_json() -> None:
    value = {"consumer": EVIL, "topic": "Grüße"}
    text = safe_json(value)
    assert text.isprintable()
    assert "Grüße" in text
    assert json.loads(text) == value


def test_a_table_shows_no_control_character_and_keeps_its_own_colours() -> None:
    table = Table(EVIL)
    table.add_row(EVIL, style="red")
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, color_system="standard", width=120, highlight=False)
    console.print(table)
    console.print(Text(EVIL))
    console.print(f"{EVIL}", markup=False)
    shown = out.getvalue()
    assert "\x1b[31m" in shown, "the colour of the row"
    assert shown.count("\\x1b]0;owned") == 4
    for letter in "\x07\x9b\r\u202e\u2028\x7f":
        assert letter not in shown
    assert "\x1b]" not in shown


def test_a_printed_line_shows_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"{EVIL} left", err=True)
    assert capsys.readouterr().err == f"{safe_text(EVIL)} left\n"
