"""Write constraints.txt from pip's own resolution of every extra: ``make constraints``.

Reads the report of ``pip install --dry-run --ignore-installed --report FILE`` (a documented format) and
prints one ``name==version`` a line. Only the standard library: it runs before anything is installed.
"""

from __future__ import annotations

import json
import re
import sys

HEADER = """\
# Every package that raytpu and its extras (dev, gcs, notebook, tpu) install, at the versions that the tests
# passed with, so that tomorrow's install is today's. `make demo` and `make test` install with it; so can you:
#
#     pip install -c constraints.txt '.[tpu]'
#
# Resolved on Linux x86-64, CPython 3.11. Do not edit by hand: `make constraints` resolves anew and rewrites
# this file; run `make check test` before committing it.
"""


def pins(report: dict) -> list[str]:
    """``name==version`` of every package of the report but raytpu itself, by name.

    Raises:
        SystemExit: when a version exists only in one machine's index (a local version such as ``+cpu``).
    """
    found = {}
    for item in report["install"]:
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        if name == "raytpu":
            continue
        if "+" in version:
            raise SystemExit(f"{name} {version} is a local build; install from a public index and retry")
        found[re.sub(r"[-_.]+", "-", name).lower()] = version
    return [f"{name}=={version}" for name, version in sorted(found.items())]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write(HEADER + "\n" + "\n".join(pins(json.load(file))) + "\n")
