"""Tables for notebooks, and the notebook among the examples."""

from __future__ import annotations

import ast
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import wireyard
from tests.make import packet

ROOT = Path(__file__).resolve().parent.parent
CAPTURE = str(ROOT / "examples" / "traffic.pcap")


def test_times_stand_beside_the_integers() -> None:
    table = wireyard.with_times(
        wireyard.read(CAPTURE, "jmq", ["captured_ns", "timestamp", "expiration"])
    )
    names = [
        "captured_ns",
        "captured_at",
        "timestamp",
        "timestamp_at",
        "expiration",
        "expiration_at",
    ]
    assert table.column_names == names
    for name, unit in (("captured_ns", "ns"), ("timestamp", "ms")):
        times = table[f"{name.removesuffix('_ns')}_at"]
        assert times.type == pa.timestamp(unit, "UTC")
        assert times.cast(pa.int64()) == table[name]
    # Of a message that never expires there is no time.
    assert 0 in table["expiration"].to_pylist() and table["expiration_at"].null_count


@pytest.mark.parametrize(
    ("timestamp", "shown"),
    [
        (-(1 << 63), None),
        (-62_135_596_800_001, None),
        (-62_135_596_800_000, datetime(1, 1, 1, tzinfo=UTC)),
        (253_402_300_799_999, datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        (253_402_300_800_000, None),
        ((1 << 63) - 1, None),
    ],
)
def test_a_packet_may_have_any_time(timestamp: int, shown: datetime | None) -> None:
    table = wireyard.read(packet(timestamp=timestamp), "jmq")
    timed = wireyard.with_times(table)
    assert timed["timestamp_at"].to_pylist() == [shown]
    assert f"<td>{timestamp}</td>" in wireyard.show(table)._repr_html_()


def test_a_table_is_shown_with_payloads_as_text_and_nothing_of_it_as_markup() -> None:
    columns = ["captured_ns", "topic", "payload", "will_payload"]
    table = wireyard.read(CAPTURE, "mqtt", columns, where="topic == shop/prices/#")
    html = wireyard.show(table, 2)._repr_html_()
    assert "<th>captured_at</th>" in html and "will_payload" not in html
    assert "<td>2.40 €</td>" in html and f"2 of {table.num_rows} rows" in html
    hostile = pa.table({"topic": ["<script>\u202e"], "payload": [b"<b>\x00"]})
    shown = "<td>&lt;script&gt;\\u202e</td><td>0x3c623e00</td>"
    assert shown in wireyard.show(hostile)._repr_html_()
    assert wireyard.show(wireyard.scan(CAPTURE, "mqtt", columns))._repr_html_().count("<tr>") == 21


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    cells = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    shown = [
        run_cell("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"
    ]
    assert "<td>CONNECT</td>" in shown[0]._repr_html_()
    assert str(shown[1]) == "timestamp[ns, tz=UTC]"
    assert "2.40 €" in shown[2]._repr_html_()
    assert len(shown[3]) == 5


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run the code of a cell; return the value of its last expression."""
    *body, last = ast.parse(source).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
