"""wireyard in Spark: the data source, sessions with its settings, and a cluster for the pipeline.

Importing this loads neither Spark nor Arrow, because every task imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wireyard.spark.fact_tables import facts
    from wireyard.spark.java import check_java
    from wireyard.spark.sessions import session
    from wireyard.spark.source import register

_HOME_OF = {
    "check_java": "wireyard.spark.java",
    "facts": "wireyard.spark.fact_tables",
    "register": "wireyard.spark.source",
    "session": "wireyard.spark.sessions",
}

__all__ = ["check_java", "facts", "register", "session"]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'wireyard.spark' has no attribute '{name}'")
    return getattr(import_module(home), name)
