"""Arrow without pandas, for commands."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

__all__ = ["leave_out_pandas"]


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def leave_out_pandas() -> None:
    """Let Arrow find that pandas is not installed, which it looks for once.

    Arrow loads it to see whether a value is one of pandas. No command makes such a value, and
    loading pandas takes longer than answering a question about a small capture.
    """
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
