"""The facts of RMP messages, as `layers.facts` registers them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from wireyard.layers.facts import DerivedFiles, Facts, PacketFile

if TYPE_CHECKING:
    import pyarrow as pa


def _derive(
    files: Sequence[PacketFile], streams: pa.Table, sources: Collection[str]
) -> DerivedFiles:
    """Derive the tables; memory holds the rows of all packets."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from wireyard.layers.rmp.chain import derive_tables
    from wireyard.layers.rmp.observer import NEEDED
    from wireyard.layers.tables import fact_table

    wanted = pa.array(list(sources), pa.string())
    rows = [
        row
        for file in files
        for table in file.batches(NEEDED)
        for row in table.filter(pc.is_in(table["source"].cast(pa.string()), wanted)).to_pylist()
    ]
    derived = derive_tables(sorted(rows, key=itemgetter("source", "stream", "offset")))
    tables = ((name, fact_table(name, facts)) for name, facts in derived.tables.items())
    return DerivedFiles(tables, derived.dropped)


FACTS: Final = Facts(
    protocol="rmp",
    formats=("rmp",),
    derive=_derive,
    shares_messages=False,
    verdicts=MappingProxyType({}),
    symptoms=(),
)
