"""The code blocks of the pages, and a shell that runs the blocks of one page as a reader would type them.

A page is README.md or a page of docs/. Its blocks of the languages `console` and `python` are run in the order of the
page. In a console block a line that begins with `$ ` is a command. If it ends with a backslash, it continues in the
next line. The lines below it are its output. In such a line
`…` stands for any text. A line that is only `…` stands for any number of lines. Spaces at the end of a line are
ignored. A command without shown output may print anything. Every command must end with status 0.

A comment that readers of the page do not see says what else a block needs. It is on a line of its own before the block:

    <!-- not run: REASON -->     the block is not run; the tests list it with its reason
    <!-- terminals -->           each command runs in a terminal of its own until Ctrl-C; it must print something
    <!-- before: COMMAND -->     the command is run first: something that the text assumes as done
    <!-- Ctrl-C -->              first, all commands in terminals are ended by Ctrl-C; commands of comments before this
                                 one are run before that
    <!-- output differs: REASON --> the shown output is an example, and is not compared
    <!-- on Kubernetes -->       the block is run on a real Kubernetes only (`make e2e-pages`), and not by other tests
    <!-- file: NAME -->          (python) the program is saved under this name, and is run by a later command
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
RUNNABLE: Final = ("console", "python")

COMMAND_DEADLINE_S: Final = 120.0
"""The deadline of one command. The slowest command waits until a broker group is drained."""
TERMINAL_DEADLINE_S: Final = 30.0
"""The longest time from Ctrl-C until the command of a terminal has ended."""

_FENCE: Final = re.compile(r"```(\w*)\s*")
_COMMENT: Final = re.compile(r"<!-- ([a-zA-Z-][a-zA-Z -]*?)(?:: (.*?))? -->")
_KINDS: Final = ("not run", "terminals", "before", "Ctrl-C", "output differs", "on Kubernetes", "file")


class PageError(AssertionError):
    """A command did something else than its page says."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a console block.

    Attributes:
        line: The number of its line in the page, from 1.
        command: The command without `$ `.
        shown: The lines below it; empty if the page shows none.
    """

    line: int
    command: str
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """One code block.

    Attributes:
        page: The path of the page below the root of the repository.
        line: The number of the line with the opening fence, from 1.
        notes: The comments before the block, as (kind, text).
    """

    page: str
    line: int
    language: str
    lines: tuple[str, ...]
    notes: tuple[tuple[str, str], ...] = ()

    def note(self, kind: str) -> str | None:
        """Return the text of a comment of that kind; None if there is none."""
        return next((text for found, text in self.notes if found == kind), None)

    @property
    def where(self) -> str:
        """The place of the block as human-readable text."""
        return f"{self.page}:{self.line}"

    def steps(self) -> list[Step]:
        """The commands of a console block."""
        steps: list[Step] = []
        for number, line in enumerate(self.lines, self.line + 1):
            if line.startswith("$ "):
                steps.append(Step(number, line[2:], ()))
            elif steps and not steps[-1].shown and steps[-1].command.endswith("\\"):
                steps[-1] = Step(steps[-1].line, f"{steps[-1].command}\n{line}", ())
            elif steps:
                last = steps[-1]
                steps[-1] = Step(last.line, last.command, (*last.shown, line))
            elif line.strip():
                raise PageError(f"{self.page}:{number}: output without a command before it")
        return steps


def _take_ctrl_c() -> None:
    """Let a child of this process take Ctrl-C again. If a shell started us with `&`, we and our children ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def pages() -> list[str]:
    """All pages that may have commands, as paths below the root."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md"]
    for directory in ("docs/using", "docs/operating", "docs/internals"):
        found += sorted((ROOT / directory).glob("*.md"))
    return [str(path.relative_to(ROOT)) for path in found]


def blocks_of(page: str, text: str | None = None) -> list[Block]:
    """The blocks of a page, in its order.

    Raises:
        PageError: A block does not end, or a comment is of an unknown kind.
    """
    found: list[Block] = []
    notes: list[tuple[str, str]] = []
    begun: tuple[int, str] | None = None
    inside: list[str] = []
    for number, line in enumerate((ROOT / page).read_text().splitlines() if text is None else text.splitlines(), 1):
        fence = _FENCE.fullmatch(line)
        if begun is not None:
            if fence is not None and not fence[1]:
                found.append(Block(page, begun[0], begun[1], tuple(inside), tuple(notes)))
                begun, inside, notes = None, [], []
            else:
                inside.append(line)
        elif fence is not None:
            begun = (number, fence[1])
        elif (comment := _COMMENT.fullmatch(line)) is not None:
            if comment[1] not in _KINDS:
                raise PageError(f"{page}:{number}: there is no comment of the kind {comment[1]!r}")
            notes.append((comment[1], comment[2] or ""))
        elif line.strip() and notes:
            raise PageError(f"{page}:{number}: the comments before this line belong to no block")
    if begun is not None or notes:
        raise PageError(f"{page}: the last block does not end")
    return found


def runnable(page: str) -> list[Block]:
    """The blocks with commands or programs."""
    return [block for block in blocks_of(page) if block.language in RUNNABLE]


def is_shown(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether the printed lines are what the page shows."""
    pattern = ""
    for line in shown:
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.rstrip().split("…")) + r"[ \t]*\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


@dataclass
class _Terminal:
    """A command that runs until Ctrl-C."""

    step: Step
    process: subprocess.Popen[bytes]
    output: Path

    def text(self) -> str:
        return self.output.read_text(errors="replace")


@dataclass
class Reader:
    """A reader who types the commands of a page: one shell, and more terminals if the page asks for them.

    As a context manager, it ends everything that still runs, and takes a local cluster down.

    Args:
        directory: An empty directory. It becomes like a checkout: it gets links to the entries of the repository.
        checkout: Whether the commands need these links.
        kubernetes: Whether to run the blocks that need a Kubernetes, and no others. Then `.local` is a link as well.
        deadline_s: The deadline of one command, in seconds.
    """

    directory: Path
    checkout: bool = True
    kubernetes: bool = False
    deadline_s: float = COMMAND_DEADLINE_S
    transcript: list[str] = field(default_factory=list)
    _terminals: list[_Terminal] = field(default_factory=list)
    _shell: subprocess.Popen[str] | None = None

    def __enter__(self) -> Reader:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.checkout:
            tracked = subprocess.run(
                ["git", "ls-tree", "--name-only", "HEAD"],  # noqa: S607
                cwd=ROOT, capture_output=True, text=True, check=True,
            ).stdout.split()  # fmt: skip
            for name in (*tracked, ".venv", *((".local",) if self.kubernetes else ())):
                if (ROOT / name).exists():
                    (self.directory / name).symlink_to(ROOT / name)
        self._shell = subprocess.Popen(
            ["/bin/bash", "--norc", "--noprofile"],
            cwd=self.directory, env=_environment(), text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for terminal in self._terminals:
            if terminal.process.poll() is None:
                os.killpg(terminal.process.pid, signal.SIGKILL)
            terminal.process.wait()
        shell = self._shell
        assert shell is not None
        if not self.kubernetes and (self.directory / ".local" / "cluster").exists():
            subprocess.run(
                [str(ROOT / ".venv" / "bin" / "seriatim"), "cluster", "down"],
                cwd=self.directory, env=_environment(), capture_output=True, check=False, timeout=COMMAND_DEADLINE_S,
            )  # fmt: skip
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        for pipe in (shell.stdin, shell.stdout):
            assert pipe is not None
            pipe.close()

    def read(self, blocks: Iterable[Block]) -> None:
        """Run all commands and programs in the blocks, in their order.

        Raises:
            PageError: A command failed, took too long, or printed something else than the page shows.
        """
        for block in blocks:
            if block.note("not run") is not None or (block.note("on Kubernetes") is not None) != self.kubernetes:
                continue
            for kind, text in block.notes:
                if kind == "Ctrl-C":
                    self.end_terminals()
                elif kind == "before":
                    self.run(block.page, Step(block.line, text, ()))
            if block.language == "python":
                self._program(block)
                continue
            for step in block.steps():
                if block.note("terminals") is not None:
                    self._open_terminal(block.page, step)
                elif block.note("output differs") is not None:
                    self.run(block.page, Step(step.line, step.command, ()))
                else:
                    self.run(block.page, step)
        self.end_terminals()

    def run(self, page: str, step: Step) -> list[str]:
        """Run a command in the shell. Return the lines that it printed.

        Raises:
            PageError: The command failed, took too long, or printed something else than the page shows.
        """
        shell = self._shell
        assert shell is not None
        assert shell.stdin is not None
        assert shell.stdout is not None
        mark = f"--- done {len(self.transcript)} "
        # The braces are needed because a comment at the end of the command ends with its line. The status is first put
        # into a variable.
        shell.stdin.write(f"{{ {step.command}\n}} </dev/null; status=$?; echo; echo '{mark}'$status\n")
        shell.stdin.flush()
        printed: list[str] = []
        late = threading.Timer(self.deadline_s, os.killpg, (shell.pid, signal.SIGKILL))
        late.start()
        try:
            for line in shell.stdout:
                if line.startswith(mark):
                    status = int(line[len(mark) :])
                    break
                printed.append(line.rstrip("\n"))
            else:
                took = "took too long" if late.finished.is_set() else "ended the shell"
                raise PageError(f"{page}:{step.line}: {step.command!r} {took}\n" + "\n".join(printed))
        finally:
            late.cancel()
            late.join()
        if printed and not printed[-1]:
            printed.pop()  # of the `echo` that ends a last line without a newline
        self.transcript += [f"$ {step.command}", *printed]
        self._see(page, step, status, printed)
        self.see_terminals(page)
        return printed

    def _see(self, page: str, step: Step, status: int, printed: list[str]) -> None:
        text = "\n".join(printed)
        if status:
            raise PageError(f"{page}:{step.line}: {step.command!r} ended with status {status}\n{text}")
        if step.shown and not is_shown(step.shown, printed):
            shown = "\n".join(step.shown)
            raise PageError(f"{page}:{step.line}: {step.command!r} printed\n{text}\nand the page shows\n{shown}")

    def _program(self, block: Block) -> None:
        name = block.note("file")
        path = self.directory / (name or f"block-{block.line}.py")
        path.write_text("\n".join(block.lines) + "\n")
        if name is None:
            self.run(block.page, Step(block.line, f"python {path.name}", ()))

    # ---- terminals -----------------------------------------------------------------------------------

    def _open_terminal(self, page: str, step: Step) -> None:
        output = self.directory / f"terminal-{len(self._terminals)}.out"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["/bin/bash", "--norc", "--noprofile", "-c", f"exec {step.command}"],
                cwd=self.directory, env=_environment(), start_new_session=True, preexec_fn=_take_ctrl_c,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        terminal = _Terminal(step, process, output)
        self._terminals.append(terminal)
        self.transcript.append(f"[{output.stem}] $ {step.command}")
        self.see_terminals(page)

    def see_terminals(self, page: str) -> None:
        """Check that the commands in the terminals still run."""
        for terminal in self._terminals:
            if terminal.process.poll() is not None:
                text = terminal.text()[-2000:]
                raise PageError(f"{page}:{terminal.step.line}: {terminal.step.command!r} ended by itself\n{text}")

    def end_terminals(self) -> None:
        """Press Ctrl-C in each terminal, in the order in which they were opened.

        Raises:
            PageError: A command printed nothing, did not end, or ended with another status than 0.
        """
        while self._terminals:
            terminal = self._terminals[0]
            os.killpg(terminal.process.pid, signal.SIGINT)
            try:
                status = terminal.process.wait(TERMINAL_DEADLINE_S)
            except subprocess.TimeoutExpired:
                raise PageError(f"{terminal.step.command!r} did not end within {TERMINAL_DEADLINE_S:g} s") from None
            self._terminals.pop(0)
            printed = terminal.text().splitlines()
            self.transcript += [f"[{terminal.output.stem}] {line}" for line in (*printed[:5], "…", *printed[-5:])]
            if status:
                text = "\n".join(printed[-20:])
                raise PageError(f"{terminal.step.command!r} ended with status {status} after Ctrl-C\n{text}")
            if not printed:
                raise PageError(f"{terminal.step.command!r} printed nothing until its end")


def _environment() -> dict[str, str]:
    """The environment of a new terminal. It has our commands in its path, and no variable that names a cluster.

    Programs print each line at once, as on a terminal.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SERIATIM_")}
    path = f"{ROOT / '.venv' / 'bin'}:{kept['PATH']}"
    return {**kept, "PATH": path, "COLUMNS": "160", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}


__all__ = ["Block", "PageError", "Reader", "Step", "blocks_of", "is_shown", "pages", "runnable"]
