"""Finds and runs the program that builds container images: docker, podman or buildah."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class EngineError(Exception):
    """No engine was found, or the engine failed. The text says what to do."""


@dataclass(frozen=True)
class Engine:
    """One of the three programs. They read the same Dockerfiles. Most of their options differ."""

    name: str
    environment: Mapping[str, str]

    def build(self, tag: str, context: Path, arguments: Mapping[str, str]) -> None:
        """Build the context's Dockerfile, and give the image a tag."""
        command = [self.name, "build", "--quiet", "--tag", tag]
        if self.name == "buildah":
            command += ["--layers=false"]  # with vfs storage each layer would copy all layers below it
        for key, value in arguments.items():
            command += ["--build-arg", f"{key}={value}"]
        self._run([*command, str(context)])

    def run(self, image: str, command: Sequence[str]) -> str:
        """Run a command in a container of the image, as the image's user. Return its output."""
        if self.name != "buildah":
            return self._run(
                [self.name, "run", "--rm", "--network=none", "--entrypoint", command[0], image, *command[1:]]
            )
        container = self._run([self.name, "from", "--pull-never", image]).strip()
        try:
            return self._run([self.name, "run", container, "--", *command])
        finally:
            self._run([self.name, "rm", container])

    def ensure(self, image: str) -> None:
        """Fetch a base image if this engine does not have it."""
        try:
            self._run([self.name, "inspect", *(["--type", "image"] if self.name == "buildah" else []), image])
        except EngineError:
            self._run([self.name, "pull", image])

    def save(self, tag: str, archive: Path) -> None:
        """Write the image as an OCI archive, under its tag."""
        partial = archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        if self.name == "buildah":
            self._run([self.name, "push", "--quiet", tag, f"oci-archive:{partial}:{tag}"])
        elif self.name == "podman":
            self._run([self.name, "save", "--quiet", "--format", "oci-archive", "--output", str(partial), tag])
        else:
            self._run([self.name, "save", "--output", str(partial), tag])  # since docker 25 this is an OCI layout too
        partial.rename(archive)

    def remove(self, tag: str) -> None:
        """Remove the image from the engine's store."""
        self._run([self.name, "rmi", "--force", tag])

    def _run(self, command: Sequence[str]) -> str:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env={**os.environ, **self.environment}
        )
        if done.returncode:
            raise EngineError(f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}".strip())
        return done.stdout


# Chroot isolation and plain copies work without kernel features that a container or a small virtual machine may lack.
# Variables that are already set stay as they are.
_BUILDAH_DEFAULTS = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}

_PROBES = {"docker": ["docker", "info"], "podman": ["podman", "info"], "buildah": ["buildah", "--version"]}
"""Commands that fail if the engine is installed but cannot work, such as a docker client without its daemon."""


def find(wanted: str | None = None) -> Engine:
    """Return the named engine. If none is named, return the first of docker, podman and buildah that works.

    Raises:
        EngineError: No engine works.
    """
    for name, probe in _PROBES.items():
        if wanted in (None, name) and shutil.which(name):
            environment = (
                {k: v for k, v in _BUILDAH_DEFAULTS.items() if k not in os.environ} if name == "buildah" else {}
            )
            works = subprocess.run(probe, check=False, capture_output=True, env={**os.environ, **environment})
            if works.returncode == 0:
                return Engine(name, environment)
    looked_for = wanted or ", ".join(_PROBES)
    raise EngineError(f"no working {looked_for} here: install one (Debian: apt-get install buildah) and run this again")
