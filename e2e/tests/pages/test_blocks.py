"""Finds the blocks of pages, compares shown output, and lists the blocks that no test runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.kubernetes.reading import READ_ON_KUBERNETES
from e2e.pages import Block, PageError, Reader, Step, blocks_of, is_shown, pages, runnable

from .test_pages import READ

PAGE = """
Words.

```console
$ echo a   # a comment
a
$ echo b
```

<!-- not run: needs a moon -->

```console
$ fly
```

<!-- file: x.py -->
<!-- Ctrl-C -->

```python
print(1)
```

```toml
a = 1
```
"""


def test_blocks_come_with_their_comments_and_commands() -> None:
    console, moon, program, settings = blocks_of("page.md", PAGE)
    assert (console.language, console.line, console.notes) == ("console", 4, ())
    assert console.steps() == [Step(5, "echo a   # a comment", ("a",)), Step(7, "echo b", ())]
    assert moon.note("not run") == "needs a moon"
    assert program.notes == (("file", "x.py"), ("Ctrl-C", ""))
    assert settings.language == "toml"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```console\n$ a", "does not end"),
        ("<!-- never -->\n```console\n```", "no comment of the kind"),
        ("<!-- Ctrl-C -->\nwords", "belong to no block"),
    ],
)
def test_a_page_that_cannot_be_understood_is_an_error(text: str, why: str) -> None:
    with pytest.raises(PageError, match=why):
        blocks_of("page.md", text)


def test_shown_output_is_compared_line_by_line() -> None:
    assert is_shown(["a", "b … d"], ["a  ", "b c d"])
    assert is_shown(["a", "…", "z"], ["a", "b", "c", "z"])
    assert is_shown(["a", "…", "z"], ["a", "z"])
    assert not is_shown(["a"], ["a", "b"])
    assert not is_shown(["a", "b"], ["a"])
    assert not is_shown(["a.c"], ["abc"])


def read(directory: Path, text: str) -> Reader:
    with Reader(directory / "checkout", checkout=False) as reader:
        reader.read(blocks_of("page.md", text))
    return reader


def test_a_command_goes_on_behind_a_backslash(tmp_path: Path) -> None:
    text = "```console\n$ echo a \\\n    b\na b\n$ echo c\nc\n```"
    assert read(tmp_path, text).transcript[1:] == ["a b", "$ echo c", "c"]


def test_blocks_for_kubernetes_are_run_by_their_own_reader(tmp_path: Path) -> None:
    text = "<!-- on Kubernetes -->\n```console\n$ echo there\n```\n```console\n$ echo here\n```"
    assert read(tmp_path, text).transcript == ["$ echo here", "here"]
    with Reader(tmp_path / "other", checkout=False, kubernetes=True) as reader:
        reader.read(blocks_of("page.md", text))
    assert reader.transcript == ["$ echo there", "there"]


def test_a_reader_types_what_the_page_says(tmp_path: Path) -> None:
    text = "```console\n$ export A=7\n$ echo $A; cd / # go\n7\n$ pwd\n/\n```"
    assert read(tmp_path, text).transcript == ["$ export A=7", "$ echo $A; cd / # go", "7", "$ pwd", "/"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```console\n$ true\n$ false\n```", r"page.md:3: 'false' ended with status 1"),
        ("```console\n$ echo a\nb\n```", "printed\na\nand the page shows\nb"),
        ("```console\n$ exit\n```", "ended the shell"),
        ("<!-- terminals -->\n```console\n$ true\n```\n```console\n$ sleep 0.5\n```", "'true' ended by itself"),
        ("<!-- file: a.py -->\n```python\n1 / 0\n```\n```console\n$ python a.py\n```", "ZeroDivisionError"),
    ],
)
def test_what_a_page_says_wrongly_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(PageError, match=why):
        read(tmp_path, text)


def test_a_terminal_runs_until_ctrl_c(tmp_path: Path) -> None:
    program = "trap 'echo ended; exit' INT; echo begun; while true; do sleep 0.01; done"
    text = f'<!-- terminals -->\n```console\n$ bash -c "{program}"\n```\n```console\n$ until test -s terminal-0.out; '
    text += "do sleep 0.01; done\n```\n<!-- Ctrl-C -->\n```console\n$ tail -1 terminal-0.out\nended\n```"
    assert read(tmp_path, text).transcript[-1] == "ended"


def test_each_block_is_run_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    """The report lists blocks that no test runs, so that a reader knows what is not proved."""
    left: list[Block] = []
    for page in pages():
        for block in runnable(page):
            reason = block.note("not run")
            assert reason is None or reason, f"{block.where}: a block that is not run says why"
            is_read = page in (READ_ON_KUBERNETES if block.note("on Kubernetes") is not None else READ)
            assert reason is not None or is_read, f"{block.where}: run the page, or say why the block is not run"
            if reason is not None:
                left.append(block)
    with capsys.disabled():
        print(f"\n{len(left)} blocks of pages that no test runs:")
        for block in left:
            print(f"  {block.where}: {block.note('not run')}")
    for page in READ_ON_KUBERNETES:
        assert any(block.note("on Kubernetes") is not None for block in runnable(page)), page
    assert {page for page in READ if all(block.note("not run") is not None for block in runnable(page))} == set()
