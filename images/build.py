"""Build Seriatim's container images: `make images`.

The host does all that needs a network: it resolves the lock for the Python of the base image, checks every hash, and
unpacks the packages into a build context. The image build copies and compiles them. So it needs neither pip nor an
index, and the image has no installer. Then each image is run once, to check that it has what it should have and nothing
else.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images import engines
from tools.version import version

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
REGISTRY = "seriatim.dev"
DEFAULT_BASE = "docker.io/library/python:3.13-slim-bookworm"

PACKAGES: Mapping[str, Sequence[str]] = {
    "broker": ("seriatim-broker", "seriatim"),
    "operator": ("seriatim-operator", "seriatim"),
    "tools": ("seriatim", "seriatim-operator"),
    "spark": ("seriatim-spark", "seriatim"),
}
"""For each image, the workspace's packages in it. Their dependencies come with them."""

DEFAULT = ("broker", "operator", "tools")
"""The images that are built if none is named. Spark's image is five times as large as these three together."""

EXTRAS: Mapping[str, Sequence[str]] = {"spark": ("spark",)}
"""Optional parts of these packages that an image also has."""

BUILT_ON_HOST = ("pyspark",)
"""Packages for which PyPI has only the source, so the host builds them. They are pure Python with data files."""

PROGRAMS: Mapping[str, Sequence[str]] = {
    "broker": ("seriatim --help",),
    "operator": ("seriatim --help",),
    "tools": ("seriatim --help", "kubectl-seriatim --help"),
    "spark": (
        "seriatim --help",
        "SPARK_LOCAL_IP=127.0.0.1 spark-submit --version",
        "python3 /opt/seriatim/pipelines.py --help",
    ),
}
"""Commands that are run in a shell of the finished image, to try it. SPARK_LOCAL_IP is set, because a build has no
network in which Java would find its address.
"""

EVERYWHERE = "seriatim-api"
"""The workspace's package that all others need."""

ABOUT_PYTHON = (
    "import json, platform, sys; print(json.dumps({'version': '%d.%d' % sys.version_info[:2],"
    " 'machine': platform.machine(), 'libc': platform.libc_ver()[1]}))"
)

INSPECTION = """
import json, os, shutil, sys
assert os.getuid() == 10001 and os.getgid() == 10001, f"runs as {os.getuid()}:{os.getgid()}"
assert sys.flags.optimize == 0, "assertions are off"
found = [n for n in ("gcc", "cc", "g++", "clang", "ld", "make", "go", "rustc", "pip", "pip3", "uv") if shutil.which(n)]
assert not found, f"has {found}"
for module in ("pip", "ensurepip", "setuptools"):
    try:
        __import__(module)
    except ImportError:
        continue
    raise AssertionError(f"has {module}")
assert shutil.which("tini"), "has no tini"
with open(sys.argv[1]) as bill:
    print(len(json.load(bill)["components"]))
"""
"""Runs inside a finished image: checks its user, and that it has no compiler and no installer."""


@dataclass(frozen=True)
class Target:
    """The Python for which packages are installed."""

    version: str
    platform: str

    @classmethod
    def of_base(cls, engine: engines.Engine, base_image: str) -> Target:
        """Read it from the base image."""
        about = json.loads(engine.run(base_image, ["python3", "-c", ABOUT_PYTHON]))
        if not about["libc"]:
            raise engines.EngineError(f"{base_image} has no glibc: several packages have wheels for glibc only")
        return cls(about["version"], f"{about['machine']}-manylinux_{about['libc'].replace('.', '_')}")


def command(*words: str | Path, cwd: Path = ROOT) -> str:
    """Run a program, and return its output.

    Raises:
        EngineError: The program failed. The message has all its output.
    """
    texts = [str(word) for word in words]
    done = subprocess.run(texts, cwd=cwd, check=False, capture_output=True, text=True, env={**os.environ, "TZ": "UTC0"})
    if done.returncode:
        raise engines.EngineError(f"{' '.join(texts)}\n{done.stdout}{done.stderr}".strip())
    return done.stdout


def uv(source: Path, *arguments: str) -> None:
    """Run uv on the workspace in `source`."""
    program = ROOT / ".venv" / "bin" / "uv"
    command(program if program.exists() else "uv", *arguments, cwd=source)


def take_source(revision: str, directory: Path) -> Path:
    """Return the directory of the sources to build: the working tree, or a copy of a commit, without changes of the
    tree.
    """
    if not revision:
        return ROOT
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    archive = directory.with_suffix(".tar")
    command("git", "archive", "--output", archive, revision)
    command("tar", "-xf", archive, "-C", directory)  # tarfile has a safe filter only from Python 3.11.4 on
    archive.unlink()
    return directory


def build_wheels(source: Path, directory: Path, images: Sequence[str]) -> None:
    """Build wheels of the workspace's packages that the images have."""
    shutil.rmtree(directory, ignore_errors=True)
    for package in dict.fromkeys([EVERYWHERE, *(package for image in images for package in PACKAGES.get(image, ()))]):
        uv(source, "build", "--quiet", "--wheel", "--package", package, "--out-dir", str(directory))


def lay_out(context: Path, image: str, source: Path, target: Target, wheels: Path) -> None:
    """Fill a build context: packages of the lock, our packages from their wheels, the bill of materials, the
    Dockerfile.
    """
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    selection = [word for package in PACKAGES[image] for word in ("--package", package)]
    selection += [word for extra in EXTRAS.get(image, ()) for word in ("--extra", extra)]
    export = ["export", "--quiet", "--frozen", "--no-dev", *selection]
    requirements = context.parent / f"{image}-requirements.txt"
    uv(source, *export, "--no-emit-workspace", "--output-file", str(requirements))
    install = ["pip", "install", "--quiet", "--no-deps", "--target", str(context / "packages")]
    install += ["--python-version", target.version, "--python-platform", target.platform, "--link-mode", "copy"]
    from_source = context.parent / f"{image}-from-source.txt"
    if split_requirements(requirements, from_source):
        uv(source, *install, "--require-hashes", "--requirement", str(from_source))
    uv(source, *install, "--require-hashes", "--only-binary", ":all:", "--requirement", str(requirements))
    ours = {path.name.split("-")[0].replace("_", "-"): path for path in wheels.glob("*.whl")}
    uv(source, *install, *(str(ours[package]) for package in (EVERYWHERE, *PACKAGES[image])))
    bill = ["--preview-features", "sbom-export", "--format", "cyclonedx1.5"]
    uv(source, *export, *bill, "--output-file", str(context / "sbom.cdx.json"))
    shutil.copy(source / "images" / "assemble.py", context)
    shutil.copy(source / "images" / image / "Dockerfile", context)


def split_requirements(requirements: Path, from_source: Path) -> bool:
    """Move packages that PyPI has only as source from one list to another. Return whether there are any."""
    entries: list[list[str]] = []
    for line in requirements.read_text().splitlines():
        if not entries or (line and not line[0].isspace()):
            entries.append([])
        entries[-1].append(line)
    moved = [entry for entry in entries if re.split("[ =]", entry[0], maxsplit=1)[0] in BUILT_ON_HOST]
    for path, chosen in ((requirements, [entry for entry in entries if entry not in moved]), (from_source, moved)):
        path.write_text("".join(f"{line}\n" for entry in chosen for line in entry))
    return bool(moved)


def lay_out_etcd(context: Path) -> None:
    """Fill the build context of the test clusters' etcd with the binaries that `make tools` has built."""
    binaries = ROOT / ".tools" / "bin"
    if not (binaries / "etcd").exists():
        raise engines.EngineError("there is no .tools/bin/etcd to put into an image: run `make tools` first")
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    for name in ("etcd", "etcdctl", "etcdutl"):
        shutil.copy(binaries / name, context)
    shutil.copy(HERE / "etcd" / "Dockerfile", context)


def labels(source: Path, revision: str) -> dict[str, str]:
    """Return build arguments that become OCI labels.

    The time is the commit's, so that a second build has the same labels.
    """
    with (source / "client" / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    arguments = {"VERSION": version}
    try:
        log = command(
            "git", "log", "-1", "--format=%H %cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", revision or "HEAD"
        )
        commit, arguments["CREATED"] = log.split()
        changed = not revision and command("git", "status", "--porcelain", "--untracked-files=no")
        arguments["REVISION"] = f"{commit}-changed" if changed else commit
    except (engines.EngineError, FileNotFoundError):
        pass  # the source archive has no history: the Dockerfiles say "unknown"
    return arguments


def build(image: str, engine: engines.Engine, options: argparse.Namespace, source: Path, target: Target | None) -> str:
    """Build, inspect and save an image. Return a line for the table."""
    began = time.monotonic()
    output: Path = options.output
    context = output / "context" / image
    tag = f"{options.registry}/{image}:{options.tag}"
    if target is None:
        lay_out_etcd(context)
    else:
        lay_out(context, image, source, target, output / "context" / "wheels")
    engine.build(tag, context, {"BASE_IMAGE": options.base_image, **labels(source, options.revision)})
    if target is None:
        components = 0
        engine.run(tag, ["/usr/local/bin/etcd", "--version"])
    else:
        bill = f"/usr/share/sbom/seriatim-{image}.cdx.json"
        components = int(engine.run(tag, ["python3", "-c", INSPECTION, bill]))
        for program in PROGRAMS[image]:
            engine.run(tag, ["sh", "-ec", program])
        (output / f"{image}.cdx.json").write_text(engine.run(tag, ["cat", bill]))
    built_s = time.monotonic() - began
    size = ""
    if options.archive:
        archive = output / f"{image}.tar"
        engine.save(tag, archive)
        size = f"{archive.stat().st_size / 1e6:.0f} MB"
        if options.archive_only:
            engine.remove(tag)
    return f"{tag:34} {size:>8} {components:>5} {built_s:>6.1f} s {time.monotonic() - began:>6.1f} s"


def _absolute(text: str) -> Path:
    """A path from here. The programs that get it run in the directory of the sources."""
    return Path(text).resolve()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line. The environment gives the defaults, so that `make images BASE_IMAGE=…` works."""
    parser = argparse.ArgumentParser(prog="python -m images.build", description=__doc__)
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help="broker, operator, tools (these three if none is named), spark, etcd"
    )
    parser.add_argument("--base-image", default=os.environ.get("BASE_IMAGE") or DEFAULT_BASE)
    parser.add_argument("--engine", choices=("docker", "podman", "buildah"), help="[default: the first that works]")
    parser.add_argument("--registry", default=REGISTRY, help=f"[default: {REGISTRY}]")
    parser.add_argument("--tag", default=version(), help="[default: the version, which is what the chart asks for]")
    parser.add_argument("--revision", default="", help="build the sources of this commit [default: the tree as it is]")
    parser.add_argument(
        "--output", type=_absolute, default=ROOT / ".local" / "images", help="archives, bills of materials"
    )
    parser.add_argument(
        "--no-archive", dest="archive", action="store_false", help="leave the images in the engine's store only"
    )
    parser.add_argument(
        "--archive-only", action="store_true",
        help="leave them as archives only: who builds often under new tags would fill the engine's store",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.archive_only and not options.archive:
        parser.error("--archive-only and --no-archive together leave nothing")
    options.images = options.images or list(DEFAULT)
    for image in options.images:
        if image not in (*PACKAGES, "etcd"):
            parser.error(f"there is no image {image}: it is one of {', '.join((*PACKAGES, 'etcd'))}")
    return options


@contextmanager
def alone(output: Path) -> Iterator[None]:
    """Let only one build at a time use a directory, because each build recreates its contexts."""
    output.mkdir(parents=True, exist_ok=True)
    with (output / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another build is under way in {output}: waiting for its end", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the images that the command line names, and print a table of sizes and seconds."""
    options = parse(arguments)
    with alone(options.output):
        return build_all(options)


def build_all(options: argparse.Namespace) -> int:
    """Build all images that the options name. Return 1 if a build fails."""
    began = time.monotonic()
    try:
        engine = engines.find(options.engine)
        print(f"{engine.name}, on {options.base_image}", flush=True)
        engine.ensure(options.base_image)
        source = take_source(options.revision, options.output / "context" / "source")
        target = None
        if set(options.images) & set(PACKAGES):
            target = Target.of_base(engine, options.base_image)
            build_wheels(source, options.output / "context" / "wheels", options.images)
            print(
                f"packages for Python {target.version} on {target.platform}: {time.monotonic() - began:.1f} s",
                flush=True,
            )
        print(f"{'image':34} {'archive':>8} {'SBOM':>5} {'built':>8} {'saved':>8}")
        for image in options.images:
            print(build(image, engine, options, source, target if image in PACKAGES else None), flush=True)
    except engines.EngineError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    print(f"took {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
