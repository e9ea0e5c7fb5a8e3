"""Prints the SBOM of a release, as CycloneDX 1.6 JSON: every pinned package with its hashes and its licence.

Run by `make release` in the environment of the service, where the licences are known. The embedded model's packages,
and those of the extra `otlp`, are optional. The same commit gives the same bytes.
"""

import json
import os
import re
import sys
import uuid
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RUN = ROOT / "requirements" / "run.txt"
OTLP = ROOT / "requirements" / "otlp.txt"
MODEL = ROOT / "src" / "cadenza" / "parts" / "embedded" / "pins.txt"
PIN = re.compile(r"^([a-z0-9-]+)==([^\s;]+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
NAMES = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # uuid.NAMESPACE_URL


def main() -> None:
    own = version("cadenza")
    components = [*_components(RUN, "required"), *_components(MODEL, "optional"), *_components(OTLP, "optional")]
    made = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    root = {"type": "application", "bom-ref": _purl("cadenza", own), "name": "cadenza", "version": own}
    bom: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": made.isoformat(),
            "component": root
            | {"purl": root["bom-ref"], "licenses": [{"expression": metadata("cadenza")["License-Expression"]}]},
        },
        "components": components,
        "dependencies": [{"ref": root["bom-ref"], "dependsOn": [one["bom-ref"] for one in components]}],
    }
    bom["serialNumber"] = uuid.uuid5(NAMES, json.dumps(bom)).urn
    json.dump(bom, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _components(pins: Path, scope: str) -> list[dict[str, Any]]:
    return [_component(name, number, rest, scope) for name, number, rest in PIN.findall(pins.read_text())]


def _component(name: str, number: str, rest: str, scope: str) -> dict[str, Any]:
    """A package may come as any of its files; each has a reference with its hash."""
    files = [
        {
            "type": "distribution",
            "url": f"https://pypi.org/simple/{name}/",
            "hashes": [{"alg": "SHA-256", "content": found}],
        }
        for found in HASH.findall(rest)
    ]
    purl = _purl(name, number)
    component = {"type": "library", "bom-ref": purl, "name": name, "version": number, "scope": scope, "purl": purl}
    return component | {"licenses": _licences(name), "externalReferences": files}


def _licences(name: str) -> list[dict[str, Any]]:
    """What the package says: an SPDX expression, else the names in its classifiers, else its own words."""
    try:
        said = metadata(name).json  # the fields in lower case
    except PackageNotFoundError:  # one for another platform
        return []
    if expression := said.get("license_expression"):
        return [{"expression": expression}]
    known = [text.rpartition(" :: ")[2] for text in said.get("classifier", []) if text.startswith("License ::")]
    first_line = str(said.get("license", "")).strip().partition("\n")[0]
    return [{"license": {"name": text}} for text in known or [first_line] if text]


def _purl(name: str, number: str) -> str:
    return f"pkg:pypi/{name}@{number}"


if __name__ == "__main__":
    main()
