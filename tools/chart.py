"""The generated parts of the chart: `make chart` writes them, and `make chart-check` names those that are not current.

- files/crds/: copies of crds/. The package leaves out the folder crds/, because Helm would install it whatever the
  values say;
- the schema of `cluster.spec` in values.schema.json: the schema of a BrokerCluster, which refuses unknown names;
- e2e/tests/chart/golden/: the output of `helm template` for each file in e2e/tests/chart/values.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from seriatim_operator.spec.settings import USER_SETTINGS

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "values.schema.json"
VALUES = ROOT / "e2e" / "tests" / "chart" / "values"
GOLDEN = ROOT / "e2e" / "tests" / "chart" / "golden"

KUBE_VERSION = "1.33.0"
"""The version of Kubernetes that Helm assumes, because without a cluster it cannot ask for one and the chart needs it.
"""


class HelmError(Exception):
    """Helm failed. The text has its output."""


def find_helm() -> str | None:
    """Find Helm on the path, or in the directory into which `make e2e-cluster` builds it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = cache / "seriatim" / "e2e" / "bin" / "helm"
    return str(built) if os.access(built, os.X_OK) else shutil.which("helm")


def run_helm(*arguments: str) -> str:
    """Run Helm, and return its output.

    Raises:
        HelmError: Helm failed.
    """
    program = find_helm()
    assert program is not None, "there is no helm: `make e2e-cluster` builds one"
    done = subprocess.run([program, *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise HelmError(done.stderr.strip())
    return done.stdout


def render(*arguments: str) -> str:
    """Render the chart as release `seriatim` in namespace `shop`."""
    return run_helm("template", "seriatim", ".", "--namespace", "shop", "--kube-version", KUBE_VERSION, *arguments)


# ---- what is made ----


def definitions() -> Iterator[tuple[Path, str]]:
    """Return copies of the definitions."""
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        yield ROOT / "files" / "crds" / path.name, path.read_text()


def schema() -> Iterator[tuple[Path, str]]:
    """Return values.schema.json with the present schema of a BrokerCluster's spec."""
    crd = yaml.safe_load((ROOT / "crds" / "seriatim.dev_brokerclusters.yaml").read_text())
    spec = _closed(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
    # These fields are not required here: the chart fills in etcd, and a template reports a missing class and names the
    # classes that exist.
    spec.pop("required", None)
    spec["properties"]["storage"].pop("required", None)
    # A rule of the definition has the names, and only Kubernetes can read rules.
    settings = spec["properties"]["settings"]
    settings |= {"properties": dict.fromkeys(sorted(USER_SETTINGS), settings["additionalProperties"])}
    settings["additionalProperties"] = False
    values = json.loads(SCHEMA.read_text())
    values["properties"]["cluster"]["properties"]["spec"] = spec
    yield SCHEMA, json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _closed(node: Any) -> Any:
    """Convert a structural schema to JSON Schema: drop keys that only Kubernetes knows, and refuse unknown names."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    kept = {key: _closed(value) for key, value in node.items() if not _is_extension(key)}
    if node.get("x-kubernetes-int-or-string"):
        kept["type"] = ["integer", "string"]
        kept.pop("anyOf", None)
    if isinstance(node.get("properties"), Mapping) and node.get("type") == "object":
        kept["additionalProperties"] = False
    return kept


def _is_extension(key: str) -> bool:
    return key.startswith("x-kubernetes-") or key in ("nullable", "format")


def golden() -> Iterator[tuple[Path, str]]:
    """Render each file of values. Random parts are masked, and of definitions only the names stay."""
    for path in sorted(VALUES.glob("*.yaml")):
        yield GOLDEN / path.name, settled(render("--values", str(path)))


def settled(manifests: str) -> str:
    """Return rendered manifests without the parts that differ from one rendering to the next."""
    parts = re.split(r"^---\n", manifests, flags=re.MULTILINE)
    texts = [_settled_document(part) for part in parts if part.strip()]
    return "".join(f"---\n{text}" for text in texts)


def _settled_document(text: str) -> str:
    document = yaml.safe_load(text)
    if document and document["kind"] == "CustomResourceDefinition":
        annotations = ", ".join(sorted(document["metadata"].get("annotations", {})))
        return f"# {document['metadata']['name']} ({annotations})\n"
    text = re.sub(r"^( +(?:ca\.crt|tls\.crt|tls\.key): ).+$", r"\1<made at each rendering>", text, flags=re.MULTILINE)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).rstrip("\n") + "\n"


# ---- the command ----


def made() -> Iterator[tuple[Path, str]]:
    """Return all files, in the order in which they depend on each other."""
    yield from definitions()
    yield from schema()
    if find_helm():
        yield from golden()


def main() -> int:
    """Write the files, or name those that are not current."""
    parser = argparse.ArgumentParser(prog="python -m tools.chart", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a file is not current")
    check = parser.parse_args().check
    stale = []
    for path, text in made():
        if not path.exists() or path.read_text() != text:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    for directory in (ROOT / "files" / "crds", GOLDEN):
        source = ROOT / "crds" if directory != GOLDEN else VALUES
        for path in directory.glob("*.yaml"):
            if not (source / path.name).exists():
                stale.append(str(path.relative_to(ROOT)))
                if not check:
                    path.unlink()
    if not find_helm():
        print("golden files were not looked at: there is no helm (`make e2e-cluster` builds one)")
    if check and stale:
        print(f"not current: {', '.join(stale)}; `make chart` rewrites them", file=sys.stderr)
        return 1
    print(f"{'checked' if check else 'written'}: {', '.join(stale) or 'all is current'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
