"""Fails if a link in the Markdown of this repository leads to a file or a heading that does not exist.

It also fails if a page about the code (`ABOUT_CODE`) names something that is not in the repository: a file or folder,
a module, a function of a file (`core/values/chain.py` (`foldable`)), a class, a rule. Paths may be shortened at their
beginning. Words in code spans are compared with the words of all files that are no pages, whatever their case.

Docstrings and comments of modules are checked for files and for what is in packages (`runtime.driver.links`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ABOUT_CODE = ("ARCHITECTURE.md", "CONTRIBUTING.md", "*/README.md", "docs/internals/*.md")
SPAN = re.compile(r"`([\w./-]+)(?:\(\))?`(?: \(`(\w+)`)?")
"""A path, a dotted name or a word as code; in brackets after it perhaps a name that the file has."""
NAME = re.compile(r"\w*_\w+|\w+(?:-\w+)+|[A-Z][a-z]+(?:[A-Z][a-z]+)+")
"""A word that is a name and not English: with an underscore, with hyphens, or with capitals inside."""
OTHERS = re.compile(r"(spec|status|seriatim|etcd\.settings)\b.*|.*\.(json|svg|log|txt)")
"""Fields of objects, values of the chart, public names, and files that programs write. They begin as packages do."""


def anchors(page: Path) -> set[str]:
    """Return the anchors that a renderer makes of a page's headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    names = set()
    for heading in HEADING.findall(text):
        plain = re.sub(r"[`*_]|\[([^\]]*)\]\([^)]*\)", lambda match: match.group(1) or "", heading).strip().lower()
        names.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return names


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead to nothing."""
    found = []
    for groups in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        target = groups[0] or groups[1]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            found.append(f"{page.relative_to(ROOT)}: {target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            found.append(f"{page.relative_to(ROOT)}: {target}: no such heading")
    return found


class Repository:
    """The files of the repository, and what they name.

    Attributes:
        ends: Every end of the path of a file or folder, with the files there: `values/chain.py`.
        words: Words and names of modules, in lower case.
    """

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self.ends: dict[str, set[Path]] = {}
        self.words: set[str] = set()
        for name in files:
            parts = name.split("/")
            for end in range(1, len(parts) + 1):
                for begin in range(end):
                    self.ends.setdefault("/".join(parts[begin:end]), set()).add(root / name)
            self.words.update(re.findall(r"[\w-]+", name.lower()))
            if not name.endswith((".md", ".svg", ".lock")):
                self.words.update(re.findall(r"[\w-]+", _text(root / name).lower()))

    def has(self, span: str, inside: str) -> bool:
        """Whether the repository has what a code span names, and its file the name in brackets, if there is one."""
        path = span.rstrip("/")
        files = self.ends.get(path) or self.ends.get(f"{path}.py")
        if files:
            return not inside or any(_has_word(file, inside) for file in files)
        first, _, rest = path.partition("/")
        if span.endswith(".py") or rest:
            return not span.endswith(".py") and first not in self.ends
        *package, name = span.split(".")
        if package and f"{package[0]}/__init__.py" in self.ends and not OTHERS.fullmatch(span):
            home = "/".join(package)
            files = self.ends.get(f"{home}/{name}.py") or self.ends.get(f"{home}/{name}/__init__.py")
            homes = self.ends.get(f"{home}.py") or self.ends.get(f"{home}/__init__.py") or ()
            return bool(files) or any(_has_word(file, name) for file in homes)
        return all(part.lower() in self.words for part in (*package, name) if NAME.fullmatch(part))


def _has_word(file: Path, word: str) -> bool:
    return bool(re.search(rf"\b{word}\b", _text(file)))


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="ignore") if file.is_file() else ""


def lost(pages: Iterable[Path], repository: Repository) -> Iterator[str]:
    """What pages about the code name, and the repository does not have; of modules only paths and dotted names."""
    for page in pages:
        for span, inside in SPAN.findall(FENCE.sub("", _text(page))):
            is_path = span.endswith(".py") if "/" in span else "." in span
            if (is_path or page.suffix != ".py") and not repository.has(span, inside):
                yield f"{page}: {span}{f' ({inside})' if inside else ''}: nothing here has this name"


def main() -> int:
    """Check every Markdown file that is not in a hidden or built directory."""
    pages = []
    for directory, names, files in os.walk(ROOT):
        # Hidden directories are not entered, because they may hold whole machines whose files come and go.
        names[:] = [name for name in names if not name.startswith(".")]
        pages += [Path(directory) / name for name in files if name.endswith(".md") and not name.startswith(".")]
    problems = [problem for page in sorted(pages) for problem in broken(page)]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    files = listed.stdout.splitlines()
    about_code = [page for pattern in ABOUT_CODE for page in sorted(ROOT.glob(pattern))]
    about_code += [ROOT / file for file in files if file.endswith(".py")]
    problems += lost(about_code, Repository(ROOT, files))
    print("\n".join(problems) or f"{len(pages)} pages, all links lead somewhere, and what they name is there")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
