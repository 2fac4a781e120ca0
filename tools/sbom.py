"""Write a bill of materials of the locked packages: ``python -m tools.sbom > build/sbom.json``.

It is CycloneDX 1.6 in JSON, made from ``requirements.lock`` alone, so the same lock gives the same
bytes: name, version, package URL and all hashes of each package.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
_PACKAGE: Final = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?:\s*\\\n\s+--hash=\S+)*)", re.M)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def bill_of_materials(lock: str, project: dict[str, Any]) -> dict[str, Any]:
    """Return the bill of materials of a lock."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name}@{version}",
                "name": name,
                "version": version,
                "purl": f"pkg:pypi/{name}@{version}",
                # Of each file of the package, for any platform; one of them is installed.
                "externalReferences": [
                    {
                        "type": "distribution",
                        "url": f"pkg:pypi/{name}@{version}",
                        "hashes": [
                            {"alg": "SHA-256", "content": digest}
                            for digest in _HASH.findall(hashes)
                        ],
                    }
                ],
            }
            for name, version, hashes in _PACKAGE.findall(lock)
        ],
    }


def main() -> int:
    """Print the bill of materials of this project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    json.dump(
        bill_of_materials((ROOT / "requirements.lock").read_text(), project), sys.stdout, indent=1
    )
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
