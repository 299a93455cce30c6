"""The root command: plugins that are missing or broken, errors on one line, exit statuses."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from seriatim.cli import _root
from seriatim.cli._options.settings import Settings
from seriatim.cli._root import expected_error, main
from seriatim.history import HistoryWriter
from seriatim_api.errors import OverloadedError, UnavailableError, UnknownTopicError

Run = Callable[..., tuple[int, str, str]]
RAISES: dict[str, BaseException] = {}


@click.command()
@click.pass_obj
def probe(settings: Settings) -> None:
    """Raise what the test asks for, or say what the settings are."""
    if "error" in RAISES:
        raise RAISES["error"]
    click.echo(json.dumps([settings.bootstrap, settings.as_json]))


@click.command()
def wordy() -> None:
    """A plugin whose first sentence is longer than a line of a terminal, as it often is in practice.

    The second paragraph is not in the list.
    """


not_a_command = 7


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    here = f"{__name__}_plugins"
    module = type(_root)(here)
    module.probe, module.wordy, module.not_a_command = probe, wordy, not_a_command  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, here, module)
    points = {
        "probe": EntryPoint("probe", f"{here}:probe", _root.ENTRY_POINT_GROUP),
        "wordy": EntryPoint("wordy", f"{here}:wordy", _root.ENTRY_POINT_GROUP),
        "missing": EntryPoint("missing", "no_such_module_anywhere:command", _root.ENTRY_POINT_GROUP),
        "wrong": EntryPoint("wrong", f"{here}:not_a_command", _root.ENTRY_POINT_GROUP),
    }
    monkeypatch.setattr(_root, "_plugins", lambda: points)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SERIATIM_BOOTSTRAP", raising=False)
    RAISES.clear()

    def call(*words: str) -> tuple[int, str, str]:
        status = 0
        try:
            main(list(words))
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_a_plugin_gets_the_root_options(run: Run) -> None:
    assert run("--bootstrap", "h:1", "--output", "json", "probe") == (0, '[["h:1"], true]\n', "")


def test_a_plugin_that_is_missing_or_wrong_is_one_clear_line(run: Run) -> None:
    for name, why in (("missing", "no_such_module_anywhere"), ("wrong", "is not a command")):
        status, out, err = run(name, "--some", "words")
        assert (status, out) == (1, "")
        assert len(err.splitlines()) == 1
        assert f"the command '{name}'" in err
        assert why in err
    status, out, _ = run("--help")
    assert status == 0
    assert "produce" in out
    assert "Raise what the test asks for" in out
    assert "broken" in out


def test_lists_of_commands_show_whole_sentences(run: Run) -> None:
    for words in ([], ["group"], ["chain"], ["topic"], ["dead-letter"]):
        status, out, _ = run(*words, "--help")
        assert status == 0
        assert "..." not in out.partition("\nCommands:\n")[2], words
    assert "A plugin whose first sentence is longer than a line of a terminal, as it often is in practice." in " ".join(
        run("--help")[1].split()
    )


def test_an_error_of_the_catalogue_is_one_line_and_a_remedy(run: Run) -> None:
    RAISES["error"] = UnknownTopicError("no topic 'x'", topic="x")
    status, out, err = run("probe")
    assert (status, out) == (1, "")
    assert err.splitlines()[0] == "error 120: no topic 'x'"
    assert "topic create" in err.splitlines()[1]
    _, _, err = run("--output", "json", "probe")
    assert json.loads(err)["error"] == {
        "number": 120, "class": "UnknownTopicError", "message": "no topic 'x'", "details": {"topic": "x"},
    }  # fmt: skip
    RAISES["error"] = OverloadedError("busy", retry_after_ms=40)
    assert "try again in 40 ms" in run("probe")[2]


def test_an_error_without_an_answer_says_where_the_address_comes_from(run: Run) -> None:
    RAISES["error"] = ExceptionGroup("tasks", [UnavailableError("no broker answers at 127.0.0.1:7400")])
    status, _, err = run("probe")
    assert status == 1
    assert "no local cluster runs in" in err.splitlines()[1]
    RAISES["error"] = UnavailableError("no broker answers at h:1")
    assert "check that the cluster runs" in run("--bootstrap", "h:1", "probe")[2]


def test_an_error_inside_a_task_group_is_found(run: Run) -> None:
    RAISES["error"] = ExceptionGroup("tasks", [ExceptionGroup("more", [UnknownTopicError("no topic")])])
    assert run("probe")[2].startswith("error 120")
    assert expected_error(ExceptionGroup("mixed", [UnknownTopicError("x"), KeyError("bug")])) is None


def test_our_own_bugs_are_not_dressed_up(run: Run) -> None:
    RAISES["error"] = KeyError("bug")
    with pytest.raises(KeyError):
        run("probe")


def test_other_ends(run: Run) -> None:
    RAISES["error"] = KeyboardInterrupt()
    assert run("probe") == (130, "", "\ninterrupted\n")
    RAISES["error"] = OSError(errno.EACCES, "Permission denied", "h.jsonl")
    assert run("probe") == (1, "", "error: h.jsonl: Permission denied\n")
    assert run("no-such-command")[0] == 2
    assert run("--bootstrap", "nonsense", "probe")[0] == 2


def test_server_commands_without_the_broker_package(run: Run) -> None:
    status, _, err = run("standalone")
    assert status == 2
    assert "seriatim-local" in err


def test_check_judges_recorded_files(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with HistoryWriter(path, "p1") as history:
        history.send(1, producer="p1", topic="t", partition=0, sequence=0)
        history.outcome(1, "ok", offset="0:0")
        history.deliver(1, group="g", consumer="c", topic="t", partition=0, offset="0:0")
        history.ack(group="g", topic="t", partition=0, offset="0:0")
        history.end("g")
    status, out, _ = run("check", str(path))
    assert status == 0, out
    assert "1 sent: 1 ok" in out
    with HistoryWriter(path, "p1") as history:
        history.send(2, producer="p1", topic="t", partition=0, sequence=1)
        history.outcome(2, "failed")
        history.deliver(2, group="g", consumer="c", topic="t", partition=0, offset="0:1")
    status, out, _ = run("--output", "json", "check", str(path))
    assert status == 1
    assert json.loads(out)["counts"]["failed_delivered"] == 1
    path.write_text("not a history\n")
    status, _, err = run("check", str(path))
    assert status == 1
    assert err.startswith("error 100")


@pytest.mark.parametrize(("words", "meant"), [("topics", "topic"), ("topic lists", "list"), ("prbe", "probe")])
def test_a_mistyped_command_names_the_one_that_was_meant(run: Run, words: str, meant: str) -> None:
    status, out, err = run(*words.split())
    assert (status, out) == (2, "")
    assert f"Did you mean '{meant}'?" in err
