"""Paths of the lake in Spark's form."""

from __future__ import annotations

import re

__all__ = ["literal", "url"]


def url(path: str) -> str:
    """Return a path of the lake as a URL for Hadoop, whose default file system may not be local."""
    scheme, mark, rest = path.partition("://")
    if not mark:
        return f"file://{path}"
    return f"{'s3a' if scheme == 's3' else scheme}://{rest}"


def literal(path: str) -> str:
    """Return the URL of a path with its wildcard characters escaped."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", url(path))
