"""Builds the images of this checkout if their sources have changed, and loads them on all nodes.

The tag is a fingerprint of the sources, so different sources never have the same name.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from e2e.kubernetes.release import Images
from tools.kubernetes import base_image
from tools.kubernetes.api import Cluster
from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import BASE_IMAGE, ROOT, cache_directory, stamp_of
from tools.kubernetes.running import run, succeeds

SOURCES: Final = ("api/src", "broker/src", "client/src", "operator/src", "images", "uv.lock")
SPARK_SOURCES: Final = ("spark-on-k8s/src",)
SUFFIXES: Final = (".py", ".lock", ".toml", "Dockerfile", ".json", ".typed")
OUTPUT: Final = ROOT / ".local" / "e2e-images"
CHART: Final = "chart"
REGISTRY: Final = "seriatim.dev"
BUILD_S: Final = 1800.0
NAMES: Final = ("broker", "operator", "tools")
SPARK: Final = "spark"
SPARK_DIRECTORY: Final = "of-spark"
ETCD_TAG: Final = "e2e"
"""The tag of etcd's image. It is made of binaries that do not change with our sources."""
PREVIOUS: Final = "6eaa330eddba7ead170ceadf8222581019665af2"
"""The commit with which an upgrade begins: it has this schema of batches (ADR 0088), does not know delayed messages,
and refuses batches with marks that it does not know. Its numbers were not released before.

A tag would not do, because a clone may have no tags. No version has been released.
"""


def ensure_previous(cluster: Cluster, say: Callable[[str], None]) -> Images | None:
    """Load the images of the version before on all nodes. None if this clone does not have its commit.

    Raises:
        ClusterError: They cannot be built or loaded.
    """
    if not succeeds(["git", "-C", ROOT, "cat-file", "-e", f"{PREVIOUS}^{{commit}}"]):
        return None
    return ensure(cluster, say, PREVIOUS, kept_as="e2e-previous")


def ensure_spark(cluster: Cluster, say: Callable[[str], None]) -> str:
    """Load Spark's image of the working tree on all nodes. Return its reference.

    Raises:
        ClusterError: It cannot be built or loaded.
    """
    tag = f"e2e-{_stamp((*SOURCES, *SPARK_SOURCES))}"
    archive = OUTPUT / SPARK_DIRECTORY / f"{tag}.tar"
    if not archive.exists():
        say(f"building Spark's image {tag} (about four minutes)")
        shutil.rmtree(archive.parent, ignore_errors=True)  # each archive takes a gigabyte
        _build((SPARK,), tag, [], archive.parent)
        (archive.parent / f"{SPARK}.tar").rename(archive)
    named = archive.with_name(f"e2e-{SPARK}.tar")
    if not named.exists():
        named.hardlink_to(archive)
    say("loading Spark's image")
    cluster.load_image(named)
    return f"{REGISTRY}/{SPARK}:{tag}"


def ensure(cluster: Cluster, say: Callable[[str], None], revision: str = "", kept_as: str = "e2e") -> Images:
    """Load the images on all nodes.

    Args:
        cluster: The cluster with the nodes.
        say: Called before each step that takes long.
        revision: The commit to build; empty: the working tree.
        kept_as: The beginning of the archives' names on the nodes. New nodes load archives by these names.

    Raises:
        ClusterError: They cannot be built or loaded.
    """
    tag = f"e2e-{committed(revision) if revision else fingerprint()}"
    archives = [OUTPUT / tag / f"{name}.tar" for name in NAMES]
    if not all(archive.exists() for archive in archives):
        say(f"building images {tag} (about two minutes)")
        _build(NAMES, tag, [f"--revision={revision}"] if revision else [])
        _forget_others(tag)
    archives.append(OUTPUT / ETCD_TAG / "etcd.tar")
    if not archives[-1].exists():
        _build(("etcd",), ETCD_TAG, [])
    for archive in archives:
        named = archive.with_name(f"{kept_as}-{archive.name}")
        if not named.exists():
            named.hardlink_to(archive)  # a link, because nodes keep archives by name
        cluster.load_image(named)
    if revision:
        _export_chart(revision, tag)
    return of_tag(tag)


def _export_chart(revision: str, tag: str) -> None:
    """Export the chart of that commit, because the chart of the working tree may not fit its images."""
    target = OUTPUT / tag / CHART
    if target.exists():
        return
    target.mkdir(parents=True)
    archive = target.with_suffix(".tar")
    run(["git", "archive", f"--output={archive}", revision], cwd=ROOT)
    run(["tar", "-xf", archive, "-C", target])
    archive.unlink()


def _build(names: Sequence[str], tag: str, options: Sequence[str], output: Path | None = None) -> None:
    base_image.ensure_base_image(cache_directory())
    argv: list[str | Path] = [
        sys.executable, "-m", "images.build", *names,
        f"--base-image={BASE_IMAGE}", f"--tag={tag}", f"--output={output or OUTPUT / tag}", "--archive-only", *options,
    ]  # fmt: skip
    run(argv, cwd=ROOT, timeout_s=BUILD_S)


def _forget_others(tag: str) -> None:
    """Remove archives of other sources. Each set takes half a gigabyte."""
    keep = [tag, ETCD_TAG, SPARK_DIRECTORY]
    with suppress(ClusterError):  # this clone lacks the commit
        keep.append(f"e2e-{committed(PREVIOUS)}")
    for directory in OUTPUT.iterdir():
        if directory.name not in keep:
            shutil.rmtree(directory, ignore_errors=True)


def of_tag(tag: str, spark: str = "") -> Images:
    """Return the images that are loaded under this tag, with the reference of Spark's image."""
    chart = OUTPUT / tag / CHART
    return Images(tag, f"{REGISTRY}/etcd:{ETCD_TAG}", chart if chart.exists() else ROOT, spark)


def fingerprint() -> str:
    """Return the fingerprint of all sources of the images, without Spark's."""
    return _stamp(SOURCES)


def _stamp(sources: Sequence[str]) -> str:
    return stamp_of(*(part for path in _files(sources) for part in (str(path.relative_to(ROOT)), path.read_bytes())))


def committed(revision: str) -> str:
    """Return a fingerprint of the images' sources at a commit.

    Raises:
        ClusterError: There is no such commit.
    """
    return stamp_of(run(["git", "rev-parse", *(f"{revision}:{source}" for source in SOURCES)], cwd=ROOT))


def _files(sources: Sequence[str]) -> Iterator[Path]:
    for source in sources:
        top = ROOT / source
        paths = [top] if top.is_file() else sorted(top.rglob("*"))
        yield from (path for path in paths if path.is_file() and path.name.endswith(SUFFIXES))
