"""Commands print text only by `seriatim_api.terminal.safe_text.echo`, and tables only on a `SafeConsole`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "client/src/seriatim/cli",
    "operator/src/seriatim_operator/plugin",
    "local/src/seriatim_local/commands.py",
    "broker/src/seriatim_broker/process/rebuild_command.py",
)
EXCEPTIONS = {
    "client/src/seriatim/cli/_options/settings.py: click.echo": "prints what a SafeConsole has drawn",
}
"""`path: call`, and why it is safe."""

WRONG = {"click.echo", "click.secho", "print", "Console"}


def wrong_calls(source: str) -> list[tuple[int, str]]:
    """The calls that print without a look at the text, with their lines."""
    return [
        (call.lineno, ast.unparse(call.func))
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and ast.unparse(call.func).removeprefix("rich.console.") in WRONG
    ]


def sources() -> Iterator[Path]:
    for place in PLACES:
        path = ROOT / place
        yield from path.rglob("*.py") if path.is_dir() else (path,)


def test_commands_print_nothing_that_a_terminal_obeys() -> None:
    paths = list(sources())
    assert len(paths) > 30
    found = [(path, *row) for path in paths for row in wrong_calls(path.read_text("utf-8"))]
    names = [(f"{path.relative_to(ROOT)}: {call}", line) for path, line, call in found]
    assert [row for row in names if row[0] not in EXCEPTIONS] == []
    assert EXCEPTIONS.keys() <= {name for name, _ in names}, "an exception that nothing needs"


@pytest.mark.parametrize(
    "source", ["click.echo(name)", "print(name)", "rich.console.Console()", "x = Console(stderr=True)"]
)
def test_a_call_that_prints_as_it_is_given_is_found(source: str) -> None:
    assert len(wrong_calls(source)) == 1


@pytest.mark.parametrize("source", ["echo(name)", "console.print(name)", "SafeConsole()", "self.echo(name)"])
def test_other_calls_are_left_alone(source: str) -> None:
    assert wrong_calls(source) == []
