"""A small program that publishes, for tests that kill it: `python -m e2e.tests.process.publishing_program`.

It stages rows for all partitions of a topic and publishes them as one publication. It writes its progress to stdout,
and continues when it gets a line on stdin.
"""

from __future__ import annotations

import argparse
import sys

from seriatim import sync
from seriatim_api.errors import SeriatimError


def rows_of(label: str, count: int) -> tuple[list[bytes], list[bytes]]:
    """Return values and keys of the rows."""
    return [b"%s-%d" % (label.encode(), number) for number in range(count)], [
        b"k%d" % number for number in range(count)
    ]


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def _main(arguments: argparse.Namespace) -> None:
    values, keys = rows_of(arguments.label, arguments.rows)
    half = len(values) // 2
    with (
        sync.Client.connect(arguments.bootstrap) as client,
        client.writer(arguments.topic, arguments.writer) as writer,
    ):
        last = writer.open()
        _say(f"opened {last}")
        chunks = [writer.stage(values[:half], keys[:half]), writer.stage(values[half:], keys[half:])]
        _say("staged")
        sys.stdin.readline()
        try:
            published = writer.publish(arguments.sequence, chunks)
        except SeriatimError as exc:
            _say(f"refused {type(exc).__name__}")
        else:
            _say(f"published {published.rows} {'again' if published.was_done else 'now'}")


if __name__ == "__main__":
    _parser = argparse.ArgumentParser()
    _parser.add_argument("--bootstrap", action="append", required=True)
    _parser.add_argument("--topic", required=True)
    _parser.add_argument("--writer", default="nightly")
    _parser.add_argument("--sequence", type=int, default=1)
    _parser.add_argument("--label", default="row")
    _parser.add_argument("--rows", type=int, default=1000)
    _main(_parser.parse_args())
