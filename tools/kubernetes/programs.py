"""Kubernetes' own programs, built from Go modules into a cache that all checkouts share.

Each group of programs is one module below `programs/`; its stamp says from which go.mod, go.sum, own sources and flags
the binaries were built, so a changed version is built again and an unchanged one is not looked at twice. etcd comes
from tools/etcd.

Helm and CoreDNS need many packages that Kubernetes' programs need too. Go compiles a package once for all of them if
each module it needs has one version. So the go.mod of the two replace each module that Kubernetes' go.mod names, with
the version that it has there (a test compares them), and the three are built one after another. CoreDNS has a `main`
of its own, with the four plugins that the cluster uses. Together that is a third fewer packages to compile.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.kubernetes.errors import ClusterError, MachineError
from tools.kubernetes.layout import ROOT, stamp_of
from tools.kubernetes.running import run

MODULES: Final = ROOT / "tools" / "kubernetes" / "programs"
BUILD_TIMEOUT_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Module:
    """One Go module whose programs are built together.

    Attributes:
        name: Its folder below `programs/`.
        packages: The commands' import paths.
        minutes: About how long a first build takes on two cores, for humans.
    """

    name: str
    packages: tuple[str, ...]
    minutes: int

    @property
    def directory(self) -> Path:
        """Where its go.mod is."""
        return MODULES / self.name

    @property
    def programs(self) -> tuple[str, ...]:
        """The binaries' names."""
        return tuple(package.rsplit("/", 1)[1] for package in self.packages)

    def stamp(self) -> str:
        """What the binaries are made from."""
        sources = sorted(path.name for path in self.directory.glob("*.go"))
        files = ((self.directory / name).read_bytes() for name in ("go.mod", "go.sum", *sources))
        return stamp_of(*files, link_flags(self), *self.packages)


KUBERNETES: Final = Module(
    "kubernetes",
    tuple(
        f"k8s.io/kubernetes/cmd/{name}"
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
            "kubectl",
        )
    ),
    minutes=4,
)
HELM: Final = Module("helm", ("helm.sh/helm/v3/cmd/helm",), minutes=1)
COREDNS: Final = Module("coredns", ("seriatim.dev/tools/kubernetes/coredns",), minutes=1)
ALL: Final = (KUBERNETES, HELM, COREDNS)


def link_flags(module: Module) -> str:
    """The linker's flags; Kubernetes' programs are given their version, without which Helm refuses their cluster."""
    if module is not KUBERNETES:
        return "-s -w"
    version = kubernetes_version((module.directory / "go.mod").read_text())
    major, minor = version.removeprefix("v").split(".")[:2]
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return "-s -w " + " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())


def kubernetes_version(go_mod: str) -> str:
    """The version of Kubernetes that a go.mod requires."""
    found = re.search(r"^\s*(?:require\s+)?k8s\.io/kubernetes (v[0-9.]+)", go_mod, re.MULTILINE)
    if found is None:
        raise ClusterError("programs/kubernetes/go.mod does not name a version of k8s.io/kubernetes")
    return found.group(1)


def is_built(module: Module, directory: Path) -> bool:
    """Whether all its programs are there, built from what the module says now."""
    stamp = directory / f".{module.name}.stamp"
    there = all((directory / program).is_file() for program in module.programs)
    return there and stamp.is_file() and stamp.read_text() == module.stamp()


def build_all(directory: Path, say: Callable[[str], None]) -> None:
    """Build what is missing or stale.

    Raises:
        MachineError: Something must be built and Go is not there.
        ClusterError: A build failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(directory):
        for module in ALL:
            if not is_built(module, directory):
                say(f"building {module.name} (the first time about {module.minutes} min)")
                _build(module, directory)
        if not etcd().is_file() and shutil.which("go") is None:
            raise MachineError("etcd must be built (`make tools`), and Go is not installed: https://go.dev/dl/")
        run([ROOT / "tools" / "etcd" / "build.sh"], timeout_s=BUILD_TIMEOUT_S)


def etcd() -> Path:
    """The etcd that Kubernetes keeps its objects in."""
    return ROOT / ".tools" / "bin" / "etcd"


def _build(module: Module, directory: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise MachineError(
            f"{module.name} must be built from its Go module, and Go is not installed: https://go.dev/dl/"
        )
    with tempfile.TemporaryDirectory(prefix=".build-", dir=directory) as scratch:
        argv = [go, "build", "-mod=readonly", "-trimpath", "-ldflags", link_flags(module), "-o", f"{scratch}/"]
        run(
            [*argv, *module.packages],
            cwd=module.directory,
            environment={"CGO_ENABLED": "0"},
            timeout_s=BUILD_TIMEOUT_S,
        )
        (directory / f".{module.name}.stamp").unlink(missing_ok=True)
        for program in module.programs:
            (Path(scratch) / program).rename(directory / program)
        (directory / f".{module.name}.stamp").write_text(module.stamp())


@contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Two checkouts that build into the same cache take turns."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
