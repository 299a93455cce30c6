"""The base image: a minimal Debian with Python, made by debootstrap, so that no image registry is needed.

It is also what the nodes' pause containers run, so it has a command that sleeps. The archive is cached by what it is
made from; a newer Debian of the same release is picked up when the cache is cleared.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from tools.kubernetes.errors import MachineError
from tools.kubernetes.layout import BASE_IMAGE, stamp_of
from tools.kubernetes.running import run

SUITE: Final = "bookworm"
PACKAGES: Final = ("python3", "python3-venv", "ca-certificates", "tini")
MIRROR_SETTING: Final = "SERIATIM_DEBIAN_MIRROR"
"""The environment variable that names the mirror. Without it, the machine's own package sources do."""

_USABLE: Final = ("http:", "https:", "file:", "copy:")
"""What debootstrap can read; apt knows more, for example lists of mirrors."""

_SOURCES_FORMAT: Final = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
RECIPE: Final = "1"
"""Raise it when the way the image is made changes."""

COMMAND: Final = '["sleep","infinity"]'

UNNEEDED: Final = ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BUILDAH_ENVIRONMENT: Final = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}
"""Works in every kernel and container, at the price of copies on disk."""


def mirror() -> str:
    """Where Debian's packages come from: the setting, or else the mirror that this machine's apt uses.

    Raises:
        MachineError: There is no setting, and apt has no source of Debian.
    """
    setting = os.environ.get(MIRROR_SETTING)
    return setting or mirror_of_sources(_sources())


def mirror_of_sources(lines: str) -> str:
    """The mirror in apt's sources, each in a line of `_SOURCES_FORMAT`: one with our suite, or else one of Debian.

    Raises:
        MachineError: There is none.
    """
    found = [words for words in map(str.split, lines.splitlines()) if len(words) >= 3 and words[2] == "main"]
    usable = [words for words in found if words[0].startswith(_USABLE)]
    ours = [words[0] for words in usable if words[1] == SUITE]
    # A Debian of another release: its mirrors have ours, too. Mirrors of security updates have updates only.
    debian = [words[0] for words in usable if words[3:] == ["Debian"] and "-" not in words[1]]
    for uri in (*ours, *debian):
        return uri.rstrip("/")
    raise MachineError(
        f"apt has no source of Debian on this machine: name a mirror of {SUITE} in the environment variable"
        f" {MIRROR_SETTING}"
    )


def _sources() -> str:
    if shutil.which("apt-get") is None:
        return ""
    return run(["apt-get", "indextargets", "--format", _SOURCES_FORMAT, "Created-By: Packages"])


def archive_path(cache: Path) -> Path:
    """The OCI archive of the base image that this recipe makes."""
    return cache / "images" / f"base-{stamp_of(RECIPE, SUITE, BASE_IMAGE, *PACKAGES)}.tar"


def ensure_base_image(cache: Path) -> None:
    """Make the archive if it is not there (one to three minutes), and give it to buildah if that does not have it."""
    archive = archive_path(cache)
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="seriatim-base-", dir=archive.parent) as scratch:
            _build(Path(scratch)).rename(archive)  # another run sees the whole archive or none
    if not _buildah("images", "--quiet", "--filter", f"reference={BASE_IMAGE}"):
        _buildah("pull", "--quiet", f"oci-archive:{archive}")


def _build(scratch: Path) -> Path:
    tree = scratch / "root"
    packages = ",".join(PACKAGES)
    run(["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, tree, mirror()], timeout_s=1200)
    for name in UNNEEDED:
        _empty(tree / name)
    container = _buildah("from", "scratch")
    try:
        _buildah("add", "--quiet", container, tree, "/")
        _buildah("config", "--env", f"PATH={PATH}", "--env", "LANG=C.UTF-8", "--cmd", COMMAND, container)
        _buildah("commit", "--quiet", container, BASE_IMAGE)
        _buildah("push", "--quiet", BASE_IMAGE, f"oci-archive:{scratch / 'image.tar'}:{BASE_IMAGE}")
    finally:
        _buildah("rm", container)
    return scratch / "image.tar"


def _buildah(*arguments: str | Path) -> str:
    return run(["buildah", *arguments], environment=BUILDAH_ENVIRONMENT, timeout_s=600).strip()


def _empty(directory: Path) -> None:
    """Remove what is in a directory, not the directory."""
    if not directory.is_dir():
        return
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
