"""Gets one Kafka broker and Spark's own source of Kafka into `.tools/kafka`: `python -m tools.kafka.fetch`.

Only `make bench-peers` and `KAFKA=1 make bench-spark` need them. `broker/pom.xml` and `connector/pom.xml` name the
files that Maven gets. Maven gets them from the repository in its own settings (`~/.m2/settings.xml`), and checks the
checksums of this repository. Each file must also have its SHA-256 in `SHA256SUMS`, and no other file may be there. If
all files are there, nothing is done.

After a change of a version, `--write-sums` gets the files again and writes a new `SHA256SUMS`: read its diff.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
KAFKA: Final = HERE.parents[1] / ".tools" / "kafka"
BROKER: Final = KAFKA / "broker"
CONNECTOR: Final = KAFKA / "connector"
SUMS: Final = HERE / "SHA256SUMS"

PARTS: Final = (BROKER.name, CONNECTOR.name)
COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
DEADLINE_S: Final = 900


class FetchError(Exception):
    """Kafka is not there, and could not be fetched. The text says why, and what to do."""


def sums_of(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a directory, by its path there."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                found[path.relative_to(directory).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def expected() -> dict[str, str]:
    """Read `SHA256SUMS`: the SHA-256 of each file, by its path below `.tools/kafka`."""
    lines = (line.split(maxsplit=1) for line in SUMS.read_text().splitlines())
    return {path: digest for digest, path in lines}


def check(found: dict[str, str], wanted: dict[str, str]) -> None:
    """Compare the files that Maven gave with the expected files.

    Raises:
        FetchError: A file is missing, has another checksum, or is not expected.
    """
    wrong = sorted(path for path in found.keys() | wanted.keys() if found.get(path) != wanted.get(path))
    if wrong:
        first = wrong[0]
        raise FetchError(
            f"{len(wrong)} files of Kafka are not those that tools/kafka/{SUMS.name} names. The first is {first}: its "
            f"SHA-256 is {found.get(first, 'none, because it is missing')} and must be "
            f"{wanted.get(first, 'none, because no such file is wanted')}. Nothing was installed. Was it damaged "
            "on its way, or does Maven's repository give another file under this name?"
        )


def _get(directory: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise FetchError(
            "Kafka comes from Maven, and there is no program mvn here (Debian: apt install maven). Only KAFKA=1 needs "
            "it."
        )
    for part in PARTS:
        command = [
            maven, "--batch-mode", "--no-transfer-progress", "--quiet", "--strict-checksums",
            "--file", str(HERE / part / "pom.xml"),
            COPY, "-DincludeScope=runtime", f"-DoutputDirectory={directory / part}",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        except subprocess.TimeoutExpired as exc:
            raise FetchError(f"Maven did not get {part} within {DEADLINE_S} s; does it reach its repository?") from exc
        if done.returncode != 0:
            told = (done.stdout + done.stderr).strip().splitlines()
            raise FetchError(f"Maven could not get {part}: {' '.join(told[:3])[:600] or done.returncode}")


def fetch(*, write_sums: bool) -> None:
    """Put the files into `.tools/kafka`, all at one moment.

    Args:
        write_sums: Whether the files that Maven gives become the expected files.

    Raises:
        FetchError: Maven did not get the files, or they are not the expected files.
    """
    if not write_sums and sums_of(KAFKA) == expected():
        print(f"Kafka is in {KAFKA.relative_to(HERE.parents[1])} already")
        return
    print(
        "getting a Kafka broker and Spark's source of Kafka with Maven (60 MB of jars, once), for this comparison only",
        flush=True,
    )
    KAFKA.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".kafka-", dir=KAFKA.parent))
    try:
        _get(aside)
        found = sums_of(aside)
        if write_sums:
            SUMS.write_text("".join(f"{digest}  {path}\n" for path, digest in found.items()))
        check(found, expected())
        shutil.rmtree(KAFKA, ignore_errors=True)
        os.replace(aside, KAFKA)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    print(f"{len(found)} jars are in {KAFKA.relative_to(HERE.parents[1])}")


def main() -> int:
    """Fetch the files. Return 1 if that fails."""
    parser = argparse.ArgumentParser(description="get Kafka, for the comparison in make bench-spark")
    parser.add_argument("--write-sums", action="store_true", help="rewrite SHA256SUMS, after a change of a version")
    try:
        fetch(write_sums=parser.parse_args().write_sums)
    except FetchError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
