"""Paths of the lake as Spark takes them."""

from __future__ import annotations

import re

__all__ = ["literal", "url"]


def url(path: str) -> str:
    """Return a path of the lake as Hadoop names it, which need not be local by default."""
    scheme, mark, rest = path.partition("://")
    if not mark:
        return f"file://{path}"
    return f"{'s3a' if scheme == 's3' else scheme}://{rest}"


def literal(path: str) -> str:
    """Return a path to read that no character of is a pattern."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", url(path))
