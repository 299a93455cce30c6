"""Fails if a link in the Markdown of this repository leads to a file or a heading that does not exist."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


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


def main() -> int:
    """Check every Markdown file that is not in a hidden or built directory."""
    pages = []
    for directory, names, files in os.walk(ROOT):
        # Hidden directories are not entered, because they may hold whole machines whose files come and go.
        names[:] = [name for name in names if not name.startswith(".")]
        pages += [Path(directory) / name for name in files if name.endswith(".md") and not name.startswith(".")]
    problems = [problem for page in sorted(pages) for problem in broken(page)]
    print("\n".join(problems) or f"{len(pages)} pages, all links lead somewhere")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
