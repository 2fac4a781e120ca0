"""The options of the data source: names, values, and what is said about wrong ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from wireyard.errors import UsageError
from wireyard.pipeline.inputs.options import _READERS, Options, read_options

ROOT = Path(__file__).resolve().parents[2]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("protocol", "jmq", "protocol", "jmq"),
        ("path", "/a", "paths", ("/a",)),
        ("paths", '["/a", "/b,c"]', "paths", ("/a", "/b,c")),
        ("columns", "offset, body", "columns", ("offset", "body")),
        ("mode", "FAILFAST", "mode", "failfast"),
        ("columnNameOfCorruptRecord", "_Bad", "corrupt_column", "_Bad"),
        ("pathGlobFilter", "*.jmq", "name_filter", "*.jmq"),
        ("recursiveFileLookup", "True", "recursive", True),
        ("ignoreMissingFiles", "true", "ignore_missing", True),
        ("ignoreCorruptFiles", "false", "ignore_corrupt", False),
        ("pushFilters", "true", "push_filters", True),
        ("maxPartitionBytes", "134217728", "partition_bytes", 134217728),
        ("maxPartitionBytes", "64k", "partition_bytes", 64 << 10),
        ("maxPartitionBytes", "2 MB", "partition_bytes", 2 << 20),
        ("maxPacketBytes", "7b", "packet_bytes", 7),
        ("maxPacketBytes", "1g", "packet_bytes", 1 << 30),
        ("modifiedBefore", "2026-03-01T12:00:00", "modified_before", NOON),
        (
            "modifiedAfter",
            "2026-03-01T12:00:00+02:00",
            "modified_after",
            datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2))),
        ),
    ],
)  # fmt: skip
def test_values(name: str, text: str, field: str, value: Any) -> None:
    assert read_options({name: text}) == Options(**{field: value})
    assert read_options({name.upper(): text}) == Options(**{field: value})


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("recursiveFileLookup", "yes", "true or false"),
        ("maxPartitionBytes", "0", "a size"),
        ("maxPartitionBytes", "-1", "a size"),
        ("maxPartitionBytes", "12 bananas", "a size"),
        ("modifiedBefore", "yesterday", "a time"),
        ("paths", "/a", "a JSON list"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_wanted(name: str, text: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=f"option '{name}' cannot be '{text}': {wanted}"):
        read_options({name: text})


def test_the_document_has_every_option() -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    # `load` gives the paths.
    assert all(f"`{name}`" in text for name in _READERS if name not in ("path", "paths"))


def test_an_unknown_option_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no option 'protocoll'; it has protocol, path, .*mode"):
        read_options({"protocoll": "jmq"})
