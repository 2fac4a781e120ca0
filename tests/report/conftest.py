"""The command line of the tests of commands."""

from __future__ import annotations

from tests.cli.conftest import run

__all__ = ["run"]
