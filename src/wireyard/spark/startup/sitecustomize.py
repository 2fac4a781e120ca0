"""Make Spark's Python processes import PySpark from installed files instead of a zip file.

Spark puts its Python code on the path as a zip file, for which Python caches no compiled code:
every process compiles all of it again, in half a second, and there are four processes between a
source and its first row. If the same code is installed as files, these are imported instead.

Python imports a module of this name when it starts. Its folder is only on the path of the processes
that a session's Java starts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path


def files_first(path: Sequence[str]) -> list[str]:
    """Move Spark's zip file to the end of `path` if the installation it lies in is on it."""
    zips = [
        entry
        for entry in path
        # <installation>/pyspark/python/lib/pyspark.zip
        if entry.endswith("pyspark.zip") and str(Path(entry).parents[3]) in path
    ]
    return [*(entry for entry in path if entry not in zips), *zips]


if __name__ == "sitecustomize":
    here = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in files_first(sys.path) if entry != here]
    # Import the `sitecustomize` that this one hides, if there is one.
    ours = sys.modules.pop(__name__)
    try:
        import_module(__name__)
    except ImportError:
        sys.modules[__name__] = ours
