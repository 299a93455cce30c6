"""Writes `reference/errors.md` from the error catalogue.

The catalogue (`seriatim_api.errors`) is the one place where an error is defined; a page written by hand
beside it would soon say something else. A test compares the committed page with what this module makes.

    python docs/generate_errors.py           writes the page
    python docs/generate_errors.py --check   writes nothing; exit status 1 if the page is not current
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Final

from seriatim_api.errors import CATALOGUE, SeriatimError

PAGE: Final = Path(__file__).resolve().parent / "reference" / "errors.md"

_INTRODUCTION: Final = """\
<!-- Made by docs/generate_errors.py from seriatim_api.errors. Change the catalogue, not this page. -->

# Errors

Every error that a broker answers, and every error that the client raises on purpose, has a number and a
class. Both are part of the contract and never change their meaning; the text of a message may be improved
in any release, so match on the number or the class, never on the text.

How to read the columns:

- **retriable**: the same call may succeed later although neither an administrator nor a program changes anything.
  The client retries such errors itself until the deadline of the call. "no" means that a retry gives the
  same answer until an administrator, a program or a newer version changes something.
- **outcome**: only of interest for a send. *known* means that nothing of this send attempt is stored, now
  or later. *unknown* means that it may be. This column is about one send attempt. The client settles the
  outcome of the batch over all its send attempts (see [append](../internals/append.md#outcomes)).
- **gRPC status**: the code that a gRPC client in any language sees. The number, the details and
  `retry_after_ms` travel beside it, in the trailing metadata entry `seriatim-error-bin` for a failed call
  and as a field of the answer where one frame carries the outcomes of many batches.

An error number that a client does not know comes from a newer broker. The client treats it as not
retriable, with an unknown outcome.
"""

_RANGES: Final = {
    1: (
        "Requests",
        "The peer sent something that cannot be right. The broker stores nothing of it, and keeps serving others.",
    ),
    2: ("Producers", "The producer's standing with a partition."),
    3: ("Routing", "The client must ask another broker, or the same one a little later."),
    4: (
        "Capacity",
        "There is no room now. If the broker knows when to try again, `retry_after_ms` says it.",
    ),
    5: ("Consumers", "The consumer's standing with its consumer group."),
    6: ("Availability", "A broker or the coordinator did not answer in time."),
    7: (
        "Storage",
        "The broker cannot use the data directory. Most of these errors refuse its start, and say why and what to do.",
    ),
}
"""Title and introduction of each hundred of numbers."""


def render() -> str:
    """The whole page.

    Raises:
        KeyError: The catalogue has a hundred that `_RANGES` does not describe.
    """
    parts = [_INTRODUCTION]
    for hundred, members in groupby(CATALOGUE.items(), key=lambda item: item[0] // 100):
        title, introduction = _RANGES[hundred]
        parts.append(f"\n## {hundred}xx: {title}\n\n{introduction}\n\n")
        parts.append("| number | class | retriable | outcome | gRPC status | meaning |\n|---|---|---|---|---|---|\n")
        parts.extend(_row(number, kind) for number, kind in members)
    return "".join(parts)


def _row(number: int, kind: type[SeriatimError]) -> str:
    retriable = "yes" if kind.retriable else "no"
    outcome = "known" if kind.outcome_known else "unknown"
    cells = (str(number), f"`{kind.__name__}`", retriable, outcome, f"`{kind.grpc_status}`", _meaning(kind))
    return f"| {' | '.join(cells)} |\n"


def _meaning(kind: type[SeriatimError]) -> str:
    """The first paragraph of the class's own docstring, on one line."""
    text = kind.__dict__.get("__doc__") or ""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    assert paragraph, f"{kind.__name__} says nothing about what it means"
    return paragraph.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit status."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: generate_errors.py [--check]\n")
        return 2
    page = render()
    if arguments == ["--check"]:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current != page:
            sys.stderr.write(f"{PAGE.name} is not current: run python docs/generate_errors.py\n")
            return 1
        return 0
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
