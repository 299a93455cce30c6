"""The names in the code use the words of the glossary, and none of those that it rules out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs/glossary.md"
PLACES = ("*/src", "sim", "e2e", "tools", "images")

EXCEPTIONS = {
    # what users and other programs know
    "api/src/seriatim_api/errors.py: *Error": "the errors' names are public",
    "api/src/seriatim_api/ids.py: RunId": "public; a member run has an identity, a producer run has none",
    "client/src/seriatim/_admin/descriptions.py: *": "the records' names are public",
    "client/src/seriatim/_values/records.py: *": "the records' names are public",
    "client/src/seriatim/_admin/broker_groups.py: heads": "a field of a public record",
    "client/src/seriatim/_values/consumer_group_settings.py: Group*": "public names, as those of the records",
    "client/src/seriatim/_admin/group_operations.py: *": "the base of the public `Admin`, which says group",
    "client/src/seriatim/sync.py: sync": "the public module with the calls that block",
    "client/src/seriatim/cli/group.py: group": "the command `seriatim group`",
    "operator/src/seriatim_operator/spec/group.py: *": "the fields of the definition BrokerGroup",
    "broker/src/seriatim_broker/rpc/*: heads*": "a field of an answer on the wire",
    "*: [hH]ead*[cC]ache*": "the cache for the heads of logs, with its setting",
    "*: _head_cache": "the same",
    "spark-on-k8s/src/seriatim_spark/pipelines/traffic.py: GroupLag": "the package's names are public",
    # the words of others
    "operator/*: *generation": "Kubernetes counts the changes of an object so",
    "api/src/seriatim_api/network/tls.py: *generation": "public: how often the certificates were read again",
    "api/src/seriatim_api/network/tls_contexts.py: *generation": "that of the certificates",
    "broker/*: *generation": "that of the certificates",
    "client/*: *generation": "that of the certificates",
    "*: *LEADER*": "etcd's leader",
    "*: *etcd_leader*": "etcd's leader",
    "broker/src/seriatim_broker/adapters/rocks/engine.py: sync": "an option of RocksDB",
    "tools/kubernetes/configs.py: SYNC_FREQUENCY_S": "a setting of the kubelet",
    "client/src/seriatim/cli/_root.py: RootGroup": "click calls commands that have commands a group",
    # other kinds of runs and groups
    "api/src/seriatim_api/wire/frames.py: ReplicateRun": "the glossary's third kind of run, of a frame",
    "broker/src/seriatim_broker/adapters/rocks/extents.py: ExtentRun": "batches one after the other in an extent",
    "broker/src/seriatim_broker/adapters/rocks/writer.py: WriteGroup": "writes that are flushed together",
    "local/src/seriatim_local/embedded/store.py: _Group": "writes that are flushed together",
    "broker/src/seriatim_broker/runtime/coordinator/group_epochs.py: group_epochs": "the glossary's group epoch",
    "client/src/seriatim/history/_collect.py: Run": "of a program that writes a history",
    "sim/publishing/programs.py: Run": "of a program that publishes",
    "sim/mutants/groups.py: groups": "planted bugs, named after the world `groups` in which they are sought",
    "sim/explore/steps.py: _do_sync": "named after an action of a search",
    "e2e/*: *Run*": "of a whole program that tests",
    "*: run": "a verb: the module runs something",
    "tools/run_tests.py: run_tests": "a verb",
}
"""`path: name`, both perhaps with `*`, and why the name stays."""


class Word(NamedTuple):
    """A word that names do not have, or only after one of `nouns`, and what to write."""

    word: str
    nouns: tuple[str, ...]
    instead: str


class Name(NamedTuple):
    """A name that the code gives: where, and whether it is that of a class or a module."""

    path: str
    line: int
    name: str
    is_class_or_module: bool


def table(page: str, heading: str) -> list[tuple[list[str], str]]:
    """The rows of the glossary's table with this first heading: the words on the left, and the right side."""
    lines = iter(page.splitlines())
    next(line for line in lines if line.startswith(f"| {heading} |"))
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        left, right = line.strip("|").split("|")
        rows.append((re.findall(r"`(\w+)`", left), right.strip()))
    return rows


def words() -> tuple[list[Word], list[Word]]:
    """The words that no name has, and those that classes and modules have only after a noun."""
    page = GLOSSARY.read_text(encoding="utf-8")
    never = [Word(word, (), right) for left, right in table(page, "not in a name") for word in left]
    alone = [
        Word(word, tuple(re.findall(r"`(\w+)`", right)), right)
        for left, right in table(page, "not alone")
        for word in left
    ]
    return never, alone


def parts(name: str) -> list[str]:
    """The words of a name: `MoveOpenSegment` and `move_open_segment` have the same."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)]


def names_in(path: str, text: str) -> Iterator[Name]:
    """The names that a module gives, its own among them."""
    yield Name(path, 1, Path(path).stem, True)
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ClassDef(name=name, lineno=line):
                yield Name(path, line, name, True)
            case ast.FunctionDef(name=name, lineno=line) | ast.AsyncFunctionDef(name=name, lineno=line):
                yield Name(path, line, name, False)
            case ast.arg(arg=name, lineno=line):
                yield Name(path, line, name, False)
            case (
                ast.Attribute(attr=name, lineno=line, ctx=ast.Store()) | ast.Name(id=name, lineno=line, ctx=ast.Store())
            ):
                yield Name(path, line, name, False)


def fault(name: Name, never: list[Word], alone: list[Word]) -> str:
    """What is wrong with a name; empty: nothing."""
    found = parts(name.name)
    for word in never:
        # `in_sync` is a word of the glossary, in which `sync` has no other meaning
        if any(part == word.word and found[max(at - 1, 0) : at + 1] != ["in", "sync"] for at, part in enumerate(found)):
            return f"{name.path}:{name.line}: {name.name}: not `{word.word}`, but {word.instead}"
    for word in alone if name.is_class_or_module else ():
        if any(part == word.word and (not at or found[at - 1] not in word.nouns) for at, part in enumerate(found)):
            return f"{name.path}:{name.line}: {name.name}: `{word.word}` only after {word.instead}"
    return ""


def all_names() -> Iterator[Name]:
    """The names in the code, without generated modules and tests."""
    for place in PLACES:
        for folder in ROOT.glob(place):
            for file in sorted(folder.rglob("*.py")):
                path = file.relative_to(ROOT).as_posix()
                if "_pb2" not in path and "/tests/" not in path:
                    yield from names_in(path, file.read_text(encoding="utf-8"))


def covers(exception: str, name: Name) -> bool:
    """Whether an exception is about a name."""
    path, _, pattern = exception.partition(": ")
    return fnmatchcase(name.path, path) and fnmatchcase(name.name, pattern)


def test_the_glossary_has_the_words() -> None:
    never, alone = words()
    assert {"head", "leader", "replica", "sync"} <= {word.word for word in never}
    assert {word.word: word.nouns for word in alone}["group"] == ("broker", "consumer")


def test_names_use_the_words_of_the_glossary() -> None:
    never, alone = words()
    wrong = [(name, text) for name in all_names() if (text := fault(name, never, alone))]
    left = [text for name, text in wrong if not any(covers(exception, name) for exception in EXCEPTIONS)]
    assert not left, "\n".join(left)
    idle = [exception for exception in EXCEPTIONS if not any(covers(exception, name) for name, _ in wrong)]
    assert not idle, "these exceptions cover nothing any more"


@pytest.mark.parametrize(
    "text",
    [
        "class MoveHead: ...",
        "def move_head(): ...",
        "def move(leader): ...",
        "replica = 1",
        "self.syncs = {}",
        "in_the_sync = 1",
        "class Sender:\n    generation: int",
        "class Group: ...",
        "class GroupHeadElsewhereError: ...",
        "class RunEnded: ...",
        "class BrokerGroupOfGroup: ...",
    ],
)
def test_a_wrong_name_is_found(text: str) -> None:
    never, alone = words()
    assert any(fault(name, never, alone) for name in names_in("sim/planted.py", text))


@pytest.mark.parametrize("path", ["sim/heads.py", "sim/group.py", "sim/run.py"])
def test_a_wrong_module_is_found(path: str) -> None:
    never, alone = words()
    assert any(fault(name, never, alone) for name in names_in(path, ""))


@pytest.mark.parametrize(
    "text",
    [
        "class ConsumerGroup: ...",
        "def run(group, attempt): ...",
        "class SendAttempt: ...",
        "header = overhead = async_ = 1",
        "is_in_sync = True",
    ],
)
def test_a_right_name_is_not(text: str) -> None:
    never, alone = words()
    assert not any(fault(name, never, alone) for name in names_in("sim/right.py", text))
