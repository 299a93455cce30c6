"""Blocks that no test runs, because they need a cluster: what can be checked without one.

Objects are held against our definitions, settings against the broker's, programs against what the client has, and
commands against the options that there are.
"""

from __future__ import annotations

import ast
import copy
import importlib
import shlex
import subprocess
import tomllib
from functools import cache
from typing import Any, Final

import click
import jsonschema
import pytest
import yaml
from seriatim.cli import main
from seriatim_broker.process.settings import BrokerSettings

from e2e.pages import ROOT, RUNNABLE, Block, blocks_of, pages

KINDS: Final = ("BrokerCluster", "Topic", "ConsumerGroup")


def blocks(language: str) -> list[Any]:
    """The blocks in a language that are not run, each with its place as the name of the test."""
    found = [block for page in pages() for block in blocks_of(page) if block.language == language]
    unrun = [block for block in found if language not in RUNNABLE or block.note("not run") is not None]
    return [pytest.param(block, id=block.where) for block in unrun]


# ---- objects -----------------------------------------------------------------------------------------------


@cache
def definition(kind: str) -> Any:
    """The schema of a kind. Unlike the API server, it refuses fields that it does not know."""
    (file,) = (ROOT / "files" / "crds").glob(f"seriatim.dev_{kind.lower()}s.yaml")
    (version,) = yaml.safe_load(file.read_text())["spec"]["versions"]
    schema = copy.deepcopy(version["schema"]["openAPIV3Schema"])
    _close(schema)
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def _close(schema: Any) -> None:
    if isinstance(schema, list):
        for item in schema:
            _close(item)
    elif isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        for item in schema.values():
            _close(item)


def whole(shown: dict[str, Any]) -> dict[str, Any] | None:
    """The object of which a page shows a part; None if it is not one of ours."""
    if "apiVersion" in shown:
        if not shown["apiVersion"].startswith("seriatim.dev/"):
            return None
        kinds: tuple[str, ...] = (shown["kind"],)
        spec = shown["spec"]
    elif shown.keys() == {"spec"}:
        kinds, spec = KINDS, shown["spec"]
    elif "external" in shown:
        kinds, spec = ("BrokerCluster",), shown
    else:
        return None  # values of the chart, which has a schema of its own
    for kind in kinds:
        if spec.keys() <= definition(kind)["properties"]["spec"]["properties"].keys():
            sample = yaml.safe_load((ROOT / "docs" / "samples" / f"{kind.lower()}.yaml").read_text())
            sample["spec"].update(spec)
            assert isinstance(sample, dict)
            return sample
    raise AssertionError(f"no kind of {kinds} has the fields {sorted(spec)}")


def check_object(text: str) -> bool:
    """Hold objects against their definitions. Return whether there were any of ours."""
    made = [one for shown in yaml.safe_load_all(text) if (one := whole(shown)) is not None]
    for one in made:
        jsonschema.validate(one, definition(one["kind"]), cls=jsonschema.Draft202012Validator)
    return bool(made)


@pytest.mark.parametrize("block", blocks("yaml"))
def test_objects_of_pages_are_as_the_definitions_say(block: Block) -> None:
    check_object("\n".join(block.lines))


@pytest.mark.parametrize(
    "text",
    [
        "external: {type: NodePorts}",
        "external: {type: NodePort, nodeAdressType: InternalIP}",
        "external: {type: NodePort, brokers: [{broker: g0-0, nodePort: a lot}]}",
        "spec: {extern: {type: NodePort}}",
    ],
)
def test_a_wrong_object_is_noticed(text: str) -> None:
    with pytest.raises((jsonschema.ValidationError, AssertionError)):
        check_object(text)


# ---- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks("toml"))
def test_settings_of_pages_are_those_of_a_broker(block: Block) -> None:
    for name in tomllib.loads("\n".join(block.lines)):
        assert name in BrokerSettings.__struct_fields__, f"{block.where}: {name}"


# ---- programs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks("python"))
def test_programs_of_pages_import_what_there_is(block: Block) -> None:
    source = "\n".join(block.lines)
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a part of an asynchronous function
        tree = ast.parse("async def part():\n" + "\n".join(f"    {line}" for line in block.lines))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "seriatim":
            module = importlib.import_module(node.module or "")
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


# ---- commands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks("console"))
def test_commands_of_pages_can_be_read(block: Block) -> None:
    """A shell can read each command, and our own commands have the options."""
    for step in block.steps():
        read = subprocess.run(["bash", "-n", "-c", step.command], capture_output=True, text=True, check=False)
        assert read.returncode == 0, f"{block.page}:{step.line}: {read.stderr}"
        words = shlex.split(step.command.replace("\\\n", " "), comments=True)
        if words[:1] == ["seriatim"] and not {"|", ">", "<", "&&", ";", "&"} & set(words):
            parse(words[1:])


def parse(words: list[str]) -> None:
    """Read a command as `seriatim` does, and do not run it.

    Raises:
        click.UsageError: There is no such command or option, or an argument is missing or wrong.
    """
    command: click.Command = main
    name = "seriatim"
    while True:
        if "$(" in " ".join(words):
            return  # what a command prints is not known
        context = command.make_context(name, words, allow_interspersed_args=not isinstance(command, click.Group))
        if not isinstance(command, click.Group):
            return
        found, next_command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        assert next_command is not None
        name, command = found, next_command


@pytest.mark.parametrize("words", ["topic lists", "topic list --all-of-them", "--bootstrap a:1 topic create"])
def test_a_wrong_command_is_noticed(words: str) -> None:
    with pytest.raises(click.UsageError):
        parse(words.split())
