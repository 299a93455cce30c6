"""The version of Seriatim. The root pyproject.toml has it. This program writes it to every other place, or checks them.

python -m tools.version            print it
python -m tools.version --check    fail if another place has another version
python -m tools.version 0.4.0      change it everywhere (then `make chart`, because golden files have it too)
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORM = r"\d+\.\d+\.\d+"
PACKAGES = ("api", "broker", "client", "e2e", "local", "operator", "spark-on-k8s")
PLACES: dict[str, str] = {
    "pyproject.toml": rf'^version = "({FORM})"$',
    **{f"{package}/pyproject.toml": rf'^version = "({FORM})"$' for package in PACKAGES},
    "uv.lock": rf'^name = "seriatim[a-z0-9-]*"\nversion = "({FORM})"$',
    "Chart.yaml": rf"^(?:version|appVersion): ({FORM})$|^ *image: seriatim\.dev/[a-z]+:({FORM})$",
    **{f"images/{image}/Dockerfile": rf"^ARG VERSION=({FORM})$" for image in ("broker", "operator", "spark", "tools")},
    "docs/operating/images.md": rf"seriatim\.dev/[a-z]+:({FORM})|\$image:({FORM})",
    "docs/operating/kubernetes.md": rf"seriatim\.dev/[a-z]+:({FORM})",
    "docs/operating/spark.md": rf"--tag ({FORM})",
}
"""For each file with the version: a pattern whose group is the version."""


def version() -> str:
    """Return the version in the root pyproject.toml."""
    found = re.search(PLACES["pyproject.toml"], (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, "pyproject.toml has no version"
    return found[1]


def differing() -> list[str]:
    """Return the places that have another version."""
    wanted, wrong = version(), []
    for name, pattern in PLACES.items():
        matches = list(re.finditer(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
        found = {group for match in matches for group in match.groups() if group}
        if found != {wanted}:
            wrong.append(f"{name}: {', '.join(sorted(found)) or 'no version'}, but pyproject.toml says {wanted}")
    return wrong


def write(wanted: str) -> None:
    """Change the version everywhere."""

    def changed(match: re.Match[str]) -> str:
        group = next(number for number, text in enumerate(match.groups(), 1) if text)
        start, end = match.start(group) - match.start(), match.end(group) - match.start()
        return match[0][:start] + wanted + match[0][end:]

    for name, pattern in PLACES.items():
        path = ROOT / name
        path.write_text(
            re.sub(pattern, changed, path.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8"
        )


def main(arguments: list[str]) -> int:
    """Run the command of the module's text. Return the exit status."""
    if not arguments:
        print(version())
        return 0
    if arguments == ["--check"]:
        wrong = differing()
        print("\n".join(wrong) or f"{version()} everywhere")
        return 1 if wrong else 0
    if len(arguments) != 1 or re.fullmatch(FORM, arguments[0]) is None:
        print("usage: python -m tools.version [--check | X.Y.Z]", file=sys.stderr)
        return 2
    write(arguments[0])
    print(f"{arguments[0]} everywhere; now `make chart`, because the chart's golden files have the version too")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
