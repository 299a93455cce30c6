"""Makes text safe for a terminal, because most text that a command prints was written by others.

A consumer's name, a writer's owner, a header and an error of a handler may have any letters. A control character among
them can change what is on the screen, hide a line, or have the terminal type a command. So `echo` is the only way by
which our commands print text (`consoles.SafeConsole` the only one by which they print tables), and a test of `tools`
finds others.
"""

from __future__ import annotations

import json
import unicodedata
from typing import IO, Any, Final

_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control characters, those that change the direction of text or are invisible, halves of letters, ends of lines."""

_KEPT: Final = frozenset("\n\t")


def safe_text(text: str) -> str:
    r"""The text with escapes (`\x1b`) in place of letters that a terminal might obey. Line feeds and tabs stay."""
    if text.isprintable():
        return text
    return "".join(letter.encode("unicode_escape").decode() if _is_unsafe(letter) else letter for letter in text)


def safe_json(value: object) -> str:
    r"""A value as JSON on one line. Letters that a terminal might obey are escaped (`\u001b`), and all others stay."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(json.dumps(letter)[1:-1] if _is_unsafe(letter) else letter for letter in text)


def echo(message: object = "", file: IO[Any] | None = None, nl: bool = True, err: bool = False) -> None:
    """Print a text as `click.echo` does, made safe. It needs click, which the packages with commands install."""
    import click

    click.echo(safe_text(str(message)), file=file, nl=nl, err=err)


def _is_unsafe(letter: str) -> bool:
    return letter not in _KEPT and unicodedata.category(letter) in _UNSAFE
