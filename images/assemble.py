"""Runs inside an image build. Makes an environment for this image's Python from packages that the host has unpacked.

It uses only the standard library, because the build has neither pip nor a network. It copies the packages in and
writes the console scripts of our own packages. It compiles everything, because a container's root is read-only and
Python could compile nothing later. At the end it adds the operating system's packages to the bill of materials.
"""

from __future__ import annotations

import argparse
import compileall
import json
import py_compile
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

SCRIPT = """#!{python}
import sys

from {module} import {name}

if __name__ == "__main__":
    sys.exit({name}())
"""

OUR_PREFIX = "seriatim"


def install(packages: Path) -> None:
    """Copy packages into this environment's site-packages, write scripts for our own, and compile all packages."""
    target = Path(sysconfig.get_path("purelib"))
    shutil.copytree(packages, target, dirs_exist_ok=True, ignore=lambda *found: ignored(packages, *found))
    for distribution in distributions(path=[str(target)]):
        if distribution.metadata["Name"].startswith(OUR_PREFIX):
            for entry in distribution.entry_points.select(group="console_scripts"):
                _write_script(Path(sysconfig.get_path("scripts")) / entry.name, entry.module, entry.attr)
    # Compiled code is not checked against its source, because files never change and image layers do not keep
    # modification times.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(target, quiet=2, workers=0, invalidation_mode=mode)


def ignored(packages: Path, directory: str, names: list[str]) -> set[str]:
    """Return the names in a directory that are not copied: scripts for the host's Python, caches and lock files."""
    scripts = {"bin"} if Path(directory) == packages else set()
    return {name for name in names if name in scripts | {"__pycache__", ".lock"}}


def _write_script(path: Path, module: str, name: str) -> None:
    path.write_text(SCRIPT.format(python=sys.executable, module=module, name=name))
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def os_components() -> list[dict[str, Any]]:
    """Return the packages of a Debian base as CycloneDX components; none if the base has no dpkg."""
    query = shutil.which("dpkg-query")
    if query is None:
        return []
    columns = "${Package}\t${Version}\t${Architecture}\n"
    listing = subprocess.run([query, "-W", f"-f={columns}"], check=True, capture_output=True, text=True).stdout
    components = []
    for line in listing.splitlines():
        name, version, architecture = line.split("\t")
        url = f"pkg:deb/debian/{name}@{version.replace(':', '%3A').replace('+', '%2B')}?arch={architecture}"
        components.append({"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url})
    return components


def bill_of_materials(resolved: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the bill of materials of this image: the installed packages of the lock, and the packages of the base."""
    target = sysconfig.get_path("purelib")
    installed = {(_normal(d.metadata["Name"]), d.version) for d in distributions(path=[target])}
    python = [c for c in resolved["components"] if (_normal(c["name"]), c["version"]) in installed]
    unknown = installed - {(_normal(c["name"]), c["version"]) for c in python}
    assert not unknown, f"installed, and not in the lock: {unknown}"
    kept = {component["bom-ref"] for component in python}
    subject = {"type": "container", "bom-ref": name, "name": name}
    dependencies = [
        {**entry, "dependsOn": [ref for ref in entry.get("dependsOn", []) if ref in kept]}
        for entry in resolved.get("dependencies", [])
        if entry["ref"] in kept
    ]
    return {
        **resolved,
        "metadata": {**resolved["metadata"], "component": subject},
        "components": python + os_components(),
        "dependencies": dependencies,
    }


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Assemble the environment, and write the bill of materials of the whole image."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="unpacked Python packages")
    parser.add_argument("--sbom", type=Path, required=True, help="CycloneDX of the Python packages")
    parser.add_argument("--sbom-out", type=Path, required=True, help="where to write that of the whole image")
    arguments = parser.parse_args()
    install(arguments.packages)
    name = arguments.sbom_out.name.removesuffix(".cdx.json")
    bill = bill_of_materials(json.loads(arguments.sbom.read_text()), name)
    arguments.sbom_out.write_text(json.dumps(bill, indent=1) + "\n")


if __name__ == "__main__":
    main()
