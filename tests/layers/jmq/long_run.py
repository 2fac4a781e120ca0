"""Random conversations by the hundred thousand: the columns against the model.

python -m tests.layers.jmq.long_run [CONVERSATIONS [SEED]]
"""

from __future__ import annotations

import sys

from tests.layers.jmq.conversation import conversations
from tests.layers.jmq.judge import differences, packet_tables

BATCH = 200


def main(count: int = 100_000, seed: int = 0) -> int:
    """Compare batch by batch; print what differs, and stop there."""
    packets = 0
    for batch in range(seed, seed + -(-count // BATCH)):
        rows, ended = conversations(batch, BATCH)
        packets += len(rows)
        sliced = {row["source"] for row in rows} if batch % 4 == 3 else ()
        differing = differences(packet_tables(rows), ended, sliced)
        if differing:
            print(f"seed {batch}:", *sorted(differing)[:20], sep="\n")
            return 1
    print(f"{count:,} conversations, {packets:,} packets: the same rows")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
