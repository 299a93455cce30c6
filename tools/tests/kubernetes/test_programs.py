"""Programs are built again when what they are made from changed, and only then."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.kubernetes import programs
from tools.kubernetes.errors import ClusterError, MachineError
from tools.kubernetes.programs import COREDNS, HELM, KUBERNETES, Module, is_built, kubernetes_version, link_flags


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    monkeypatch.setattr(programs, "MODULES", tmp_path / "modules")
    made = Module("tool", ("example.org/cmd/one", "example.org/cmd/two"), minutes=1)
    made.directory.mkdir(parents=True)
    for name in ("go.mod", "go.sum"):
        (made.directory / name).write_text(name)
    return made


def pretend_built(module: Module, directory: Path) -> None:
    directory.mkdir()
    for program in module.programs:
        (directory / program).touch()
    (directory / ".tool.stamp").write_text(module.stamp())


def test_the_version_is_read_from_the_module_and_told_to_the_programs() -> None:
    assert kubernetes_version("go 1.26\n\nrequire k8s.io/kubernetes v1.36.3\n") == "v1.36.3"
    assert kubernetes_version("require (\n\tk8s.io/kubernetes v1.37.0\n)\n") == "v1.37.0"
    with pytest.raises(ClusterError, match="does not name a version"):
        kubernetes_version("require k8s.io/api v0.36.3\n")
    version = kubernetes_version((KUBERNETES.directory / "go.mod").read_text())
    assert f"version.gitVersion={version}" in link_flags(KUBERNETES)
    assert "gitVersion" not in link_flags(HELM)


def test_what_is_built_is_not_built_again(module: Module, tmp_path: Path) -> None:
    assert not is_built(module, tmp_path / "bin")
    pretend_built(module, tmp_path / "bin")
    assert is_built(module, tmp_path / "bin")


def versions(module: Module) -> dict[str, str]:
    """The version of each Go module that is built, by its path."""
    text = (module.directory / "go.mod").read_text()
    found = dict(re.findall(r"^(?:require )?\s*([\w./~-]+) (v\S+)", text, re.MULTILINE))
    return found | dict(re.findall(r"^\s*([\w./~-]+) => \1 (v\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("module", [HELM, COREDNS], ids=lambda module: module.name)
def test_what_kubernetes_needs_too_has_its_version_and_is_compiled_once(module: Module) -> None:
    theirs = versions(KUBERNETES)
    both = {path: version for path, version in versions(module).items() if path in theirs}
    assert len(both) > 40
    assert both == {path: theirs[path] for path in both}, "write these versions into `replace`"


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_a_changed_module_is_built_again(module: Module, tmp_path: Path, name: str) -> None:
    (module.directory / "main.go").write_text("package main")
    pretend_built(module, tmp_path / "bin")
    (module.directory / name).write_text("changed")
    assert not is_built(module, tmp_path / "bin")


def test_a_lost_program_is_built_again(module: Module, tmp_path: Path) -> None:
    pretend_built(module, tmp_path / "bin")
    (tmp_path / "bin" / "two").unlink()
    assert not is_built(module, tmp_path / "bin")


def test_without_go_a_machine_says_so(module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "ALL", (module,))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="Go is not installed"):
        programs.build_all(tmp_path / "bin", lambda _: None)
