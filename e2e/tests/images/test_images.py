"""The parts of image builds that need no build: which engine builds, and what the build does inside.

Each `make images` checks that a finished image runs as it should and has no installer left.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from images import engines
from images.assemble import ignored
from images.build import PACKAGES, ROOT, alone, labels, parse, split_requirements, take_source


def put_program(directory: Path, name: str, script: str) -> None:
    """Put a program into the only directory in which programs are found."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only directory in which programs are found."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


def test_a_docker_without_its_daemon_is_passed_over(programs: Path) -> None:
    put_program(programs, "docker", "exit 1")
    put_program(programs, "buildah", "exit 0")
    engine = engines.find()
    assert engine.name == "buildah"
    assert engine.environment == {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}
    put_program(programs, "docker", "exit 0")
    assert engines.find().name == "docker"
    assert engines.find("buildah").name == "buildah"


def test_a_relative_output_is_below_the_directory_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse(["--output", "out"]).output == tmp_path / "out", "uv, which writes there, runs in the checkout"


def test_what_the_environment_says_of_buildah_stands(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_program(programs, "buildah", "exit 0")
    monkeypatch.setenv("STORAGE_DRIVER", "overlay")
    assert engines.find().environment == {"BUILDAH_ISOLATION": "chroot"}


def test_without_any_engine_it_says_what_to_install(programs: Path) -> None:
    with pytest.raises(engines.EngineError, match=r"no working docker, podman, buildah here: install one"):
        engines.find()
    put_program(programs, "podman", "exit 1")
    with pytest.raises(engines.EngineError, match="no working podman"):
        engines.find("podman")


def test_what_an_engine_complains_of_is_told_with_its_command(programs: Path, tmp_path: Path) -> None:
    put_program(programs, "podman", '[ "$1" = info ] || { echo "no such base" >&2; exit 7; }')
    with pytest.raises(engines.EngineError, match=r"podman build (?s:.*)exit status 7\nno such base"):
        engines.find().build("a:b", tmp_path, {})


def test_an_archive_is_there_whole_or_not_at_all(programs: Path, tmp_path: Path) -> None:
    archive = tmp_path / "broker.tar"
    put_program(programs, "podman", f'[ "$1" = info ] || {{ echo half > {tmp_path}/broker.partial; exit 1; }}')
    with pytest.raises(engines.EngineError):
        engines.find().save("a:b", archive)
    assert not archive.exists()


def test_an_image_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["brokers"])
    assert "it is one of broker, operator, tools, spark, etcd" in capsys.readouterr().err


def test_two_builds_in_one_directory_wait_for_each_other(tmp_path: Path) -> None:
    program = (
        f"from pathlib import Path; from images.build import alone\nwith alone(Path({str(tmp_path)!r})): print('in')"
    )
    with alone(tmp_path):
        other = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert "another build is under way" in other.stdout.readline()
        assert other.poll() is None
    rest, _ = other.communicate(timeout=30)
    assert rest == "in\n"
    assert other.returncode == 0


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
def test_the_sources_of_a_commit_are_taken_whatever_lies_in_the_tree(tmp_path: Path) -> None:
    assert take_source("", tmp_path / "unused") == ROOT
    source = take_source("HEAD", tmp_path / "source")
    assert (source / "uv.lock").exists()
    assert not (source / ".venv").exists()
    told = labels(source, "HEAD")
    assert re.fullmatch(r"[0-9a-f]{40}", told["REVISION"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", told["CREATED"])
    with pytest.raises(engines.EngineError, match="git archive"):
        take_source("no-such-commit", tmp_path / "other")


@pytest.mark.parametrize("image", [*PACKAGES, "etcd"])
def test_each_dockerfile_has_a_base_to_choose_and_an_unprivileged_user(image: str) -> None:
    text = (ROOT / "images" / image / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE_IMAGE=\S+:\S+$", text, re.MULTILINE), "a named base, with a tag"
    froms = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert set(froms) == {"${BASE_IMAGE}"}
    assert text.rstrip().splitlines()[-1].startswith(("CMD", "ENTRYPOINT"))
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["10001:10001"]


def test_packages_become_an_environment_with_scripts_and_a_bill_of_materials(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    for name, scripts in (("seriatim_demo", "seriatim-demo = seriatim_demo:main"), ("other", "other = other:main")):
        information = packages / f"{name}-1.2.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.2\n")
        (information / "entry_points.txt").write_text(f"[console_scripts]\n{scripts}\n")
        (packages / f"{name}.py").write_text(f"def main():\n    print('this is {name}')\n")
    resolved = {
        "bomFormat": "CycloneDX",
        "metadata": {"component": {"name": "workspace"}},
        "components": [
            {"name": "seriatim-demo", "version": "1.2", "bom-ref": "demo"},
            {"name": "Other", "version": "1.2", "bom-ref": "other"},
            {"name": "windows-only", "version": "3", "bom-ref": "windows"},
        ],
        "dependencies": [{"ref": "demo", "dependsOn": ["other", "windows"]}, {"ref": "windows"}],
    }
    (tmp_path / "in.json").write_text(json.dumps(resolved))
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    command = [str(environment / "bin" / "python"), str(ROOT / "images" / "assemble.py")]
    command += ["--packages", str(packages), "--sbom", str(tmp_path / "in.json")]
    subprocess.run([*command, "--sbom-out", str(tmp_path / "seriatim-demo.cdx.json")], check=True)

    said = subprocess.run([environment / "bin" / "seriatim-demo"], check=True, capture_output=True, text=True).stdout
    assert said == "this is seriatim_demo\n"
    assert not (environment / "bin" / "other").exists(), "only our own commands are on the path"
    compiled = list(environment.rglob("seriatim_demo.*.pyc"))
    assert len(compiled) == 1
    assert compiled[0].read_bytes()[4] == 1, "compiled to be used whatever the source's time says"

    bill = json.loads((tmp_path / "seriatim-demo.cdx.json").read_text())
    python = [part["name"] for part in bill["components"] if not part.get("purl", "").startswith("pkg:deb/")]
    assert python == ["seriatim-demo", "Other"]
    assert bill["dependencies"] == [{"ref": "demo", "dependsOn": ["other"]}]
    assert bill["metadata"]["component"] == {"type": "container", "bom-ref": "seriatim-demo", "name": "seriatim-demo"}


def test_what_is_there_as_source_only_is_listed_apart(tmp_path: Path) -> None:
    listed, from_source = tmp_path / "all.txt", tmp_path / "source.txt"
    listed.write_text(
        "# by uv\nnumpy==2.4.0 \\\n    --hash=sha256:aa\n    # via seriatim-spark\n"
        "pyspark==4.3.0 \\\n    --hash=sha256:bb\n    # via seriatim-spark\npyspark-client==4.2.0\n"
    )
    assert split_requirements(listed, from_source)
    assert from_source.read_text().startswith("pyspark==4.3.0 \\\n    --hash=sha256:bb\n")
    assert "numpy" not in from_source.read_text()
    assert "numpy==2.4.0 \\\n    --hash=sha256:aa\n" in listed.read_text()
    assert "pyspark-client==4.2.0" in listed.read_text()
    assert "pyspark==" not in listed.read_text()
    assert not split_requirements(listed, from_source)
    assert from_source.read_text() == ""


def test_scripts_of_the_host_stay_behind_and_folders_of_packages_do_not(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    for name in ("bin/spark-submit", "pyspark/bin/spark-submit", "pyspark/__pycache__/a.pyc"):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text("")
    assert ignored(packages, str(packages), ["bin", "pyspark", ".lock"]) == {"bin", ".lock"}
    assert ignored(packages, str(packages / "pyspark"), ["bin", "__pycache__"]) == {"__pycache__"}
