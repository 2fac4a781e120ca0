"""Messages that several capture points show: their hops by the clocks of these points.

A message in several captures, taken at different points, is one message: its hops get one order
once the clock offsets between the points are estimated (``clocks.py``). The steps, with their keys:

1. `compare_times`, key: message. The differences between the times of the same packets.
2. `compare_clocks`, key: capture points. Clock offsets from the bounds of all windows.
3. `order_several`, key: message, with the clocks of all windows.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations, islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wireyard.arrays import Ints
from wireyard.layers.grouping import decode_texts, dense_ids, order_groups, text_codes
from wireyard.layers.jmq import hops
from wireyard.layers.jmq.clocks import (
    ONE_WAY,
    WINDOW_NS,
    Spans,
    Track,
    Window,
    clocks,
    separate_clocks,
    widened,
)
from wireyard.layers.jmq.hops import KINDS, UNKNOWN, Clocked, Names, Sightings, hop_rows
from wireyard.layers.jmq.packet_columns import raise_times, rank_of
from wireyard.layers.jmq.record_columns import join_codes

_SEPARATOR: Final = "\0"
"""Between the names of capture points."""
_TOWARDS_BROKER: Final = ("sent", "acknowledged")
_BETWEEN_BROKERS: Final = ("relayed", "relay_acknowledged")
_REASONS: Final = tuple(UNKNOWN)
_SPANS: Final = pa.schema(
    [
        ("points", pa.string()), ("point", pa.int64()), ("window", pa.int64()), ("j", pa.int64()),
        ("first", pa.string()), ("second", pa.string()), ("forward", pa.bool_()),
        ("least", pa.int64()), ("most", pa.int64()),
    ]
)  # fmt: skip
"""Spans of tracks by window; `j` is null in the row of the window itself."""
_CLOCKS: Final = pa.schema(
    [
        ("points", pa.string()), ("point", pa.int64()), ("window", pa.int64()),
        ("reference", pa.list_(pa.int64())), ("ahead_ns", pa.list_(pa.int64())),
        ("most_ns", pa.list_(pa.list_(pa.int64()))), ("reason", pa.string()),
    ]
)  # fmt: skip
"""Clocks by window; a bound that there is not is 0."""


class Compared(NamedTuple):
    """The result of `compare_times`.

    `several` are the sightings, with their capture points and windows; `spans` are differences
    between the times of the same packets. `dropped` counts the sightings at more than `MAX_POINTS`
    points.
    """

    several: pa.Table
    spans: pa.Table
    dropped: Counter[str]


def hops_of_several(several: pa.Table) -> tuple[pa.Table, Counter[str]]:
    """Run all steps in memory; return the rows, and the number of items that caps dropped."""
    compared = compare_times(several)
    found, dropped = compare_clocks(compared.spans)
    return order_several(compared.several, found), compared.dropped + dropped


# --- times ----------------------------------------------------------------------------------


def compare_times(several: pa.Table) -> Compared:
    """Compare the times of packets at several capture points."""
    sightings, names = hops.sightings_of(several)
    point, points, is_above = _capture_points(sightings, names)
    dropped = Counter({"MAX_POINTS": int(is_above.sum())} if is_above.any() else {})
    window = pa.array(sightings.ns // WINDOW_NS, mask=~sightings.timed)
    for name, column in (("points", points), ("point", pa.array(point)), ("window", window)):
        several = several.append_column(name, column)
    kept = np.flatnonzero(~is_above)
    chosen = kept[sightings.timed[kept]]
    spans = _spans(sightings.take(chosen), names, several.take(pa.array(chosen)))
    return Compared(several.take(pa.array(kept)), spans, dropped)


def _capture_points(sightings: Sightings, names: Names) -> tuple[Ints, pa.Array, Any]:
    """Return of each sighting the point, all points of its message, and whether that is left out.

    The points of a message are the sources that show it with times, the first `MAX_POINTS` by name.
    """
    sources = names.sources.to_pylist()
    rank = rank_of(sources)[sightings.source] if sources else sightings.source
    timed, most = sightings.timed, hops.MAX_POINTS
    pairs = np.unique(np.stack([sightings.message[timed], rank[timed]]), axis=1)
    message, of_rank = pairs.astype(np.int64)
    counts = np.bincount(message, minlength=len(names.keys))
    place = np.arange(len(message)) - np.repeat(np.cumsum(counts) - counts, counts)
    grid = np.full((len(names.keys), most), -1, np.int64)
    grid[message[place < most], place[place < most]] = of_rank[place < most]
    shown = grid[sightings.message] == rank[:, None]
    point = np.where(shown.any(axis=1), shown.argmax(axis=1), 0)
    sets, count = dense_ids(*grid.T)
    first = np.zeros(count, np.int64)
    first[sets[::-1]] = np.arange(len(sets))[::-1]
    by_rank = sorted(sources)
    texts = [_SEPARATOR.join(by_rank[at] for at in grid[row] if at >= 0) for row in first]
    points = decode_texts(sets[sightings.message], pa.array(texts, pa.string()))
    return point, points, (counts > most)[sightings.message] & ~shown.any(axis=1)


def _spans(sightings: Sightings, names: Names, several: pa.Table) -> pa.Table:
    """Return the least and the largest time difference of each track by its window."""
    columns = [several[name].combine_chunks() for name in ("points", "point", "window")]
    keys = [text_codes(columns[0])[0], *(column.to_numpy() for column in columns[1:])]
    windows, count = dense_ids(*keys)
    first = np.zeros(count, np.int64)
    first[windows[::-1]] = np.arange(len(windows))[::-1]
    alone = several.select(["points", "point", "window"]).take(pa.array(first))
    at, j, difference = _differences(sightings, names, keys[1])
    link, links = _links(sightings.take(at), names)
    track, tracks = dense_ids(windows[at], j, link)
    of_track = np.zeros(tracks, np.int64)
    of_track[track] = np.arange(len(track))
    least = np.full(tracks, np.iinfo(np.int64).max)
    most = np.full(tracks, np.iinfo(np.int64).min)
    np.minimum.at(least, track, difference)
    np.maximum.at(most, track, difference)
    ends = [links[code] for code in link[of_track].tolist()]
    spans = several.select(["points", "point", "window"]).take(pa.array(at[of_track]))
    nulls = {name: pa.nulls(count, _SPANS.field(name).type) for name in _SPANS.names[3:]}
    found = {
        "j": j[of_track], "least": least, "most": most,
        **{name: [end[place] for end in ends] for place, name in
           enumerate(("first", "second", "forward"))},
    }  # fmt: skip
    return pa.concat_tables(
        [
            pa.table({**dict(zip(table.column_names, table.columns, strict=True)), **more})
            .select(_SPANS.names)
            .cast(_SPANS)
            for table, more in ((alone, nulls), (spans, found))
        ]
    )


def _differences(sightings: Sightings, names: Names, point: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the time differences between points of the same packet.

    Packets with the same kind, consumer and delivery count are the same packet. If two points have
    equally many of them, they correspond in order; otherwise one point missed some, and it is
    unknown which, so they are not compared. The results are the sighting at the first point, the
    second point, and its time less that at the first.
    """
    most = hops.MAX_POINTS
    packet, packets = dense_ids(
        sightings.message, sightings.kind, sightings.has_consumer, sightings.consumer,
        sightings.copy,
    )  # fmt: skip
    rank = np.append(rank_of(names.streams.to_pylist()), 0)[sightings.stream]
    order, starts = order_groups(
        packet.astype(np.int64) * most + point, packets * most, sightings.ns, sightings.frame, rank,
        sightings.offset,
    )  # fmt: skip
    counts = np.diff(starts).reshape(-1, most)
    found = [np.empty((3, 0), np.int64)]
    for i, j in combinations(range(most), 2):
        same = np.flatnonzero((counts[:, i] == counts[:, j]) & (counts[:, i] > 0))
        sizes = counts[same, i]
        place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        at_i, at_j = (order[np.repeat(starts[same * most + p], sizes) + place] for p in (i, j))
        difference = sightings.ns[at_j] - sightings.ns[at_i]
        found.append(np.stack([at_i, np.full(len(at_i), j), difference]))
    at, j_of, differences = np.concatenate(found, axis=1)
    return at, j_of, differences


def _links(sightings: Sightings, names: Names) -> tuple[Any, list[tuple[str, str, bool]]]:
    """Return the code of the link of each packet, and the links.

    A link is its two ends, and whether the packet is sent to the second. The ends are the hosts of
    a client and its broker, or the endpoints of two brokers.
    """
    codes, count = dense_ids(sightings.kind, sightings.sender, sightings.receiver)
    first = np.zeros(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    ends, links, known = names.ends.to_pylist(), [], dict[tuple[str, str, bool], int]()
    for at in first.tolist():
        kind = KINDS[sightings.kind[at]]
        sender, receiver = ends[sightings.sender[at]], ends[sightings.receiver[at]]
        if kind in _BETWEEN_BROKERS:
            one, other = sorted((sender, receiver))
            link = one, other, sender == one
        else:
            forward = kind in _TOWARDS_BROKER
            both = (sender, receiver) if forward else (receiver, sender)
            client, broker = (end.rpartition(":")[0] for end in both)
            link = client, broker, forward
        links.append(known.setdefault(link, len(known)))
    return np.array(links, np.int64)[codes], list(known)


# --- clocks ---------------------------------------------------------------------------------


def compare_clocks(spans: pa.Table) -> tuple[pa.Table, Counter[str]]:
    """Return the clock offsets of every window, and the number of windows and spans left out."""
    of_points: dict[str, dict[Window, dict[Track, tuple[int, int]]]] = {}
    for row in sorted(spans.to_pylist(), key=itemgetter("points", "window", "point")):
        window = row["point"], row["window"]
        tracks = of_points.setdefault(row["points"], {}).setdefault(window, {})
        if row["j"] is not None:
            track = Track(row["point"], row["j"], (row["first"], row["second"]), row["forward"])
            tracks[track] = widened(tracks.get(track), (row["least"], row["most"]))
    dropped: Counter[str] = Counter()
    rows = []
    for points, windows in of_points.items():
        count, total = points.count(_SEPARATOR) + 1, 0
        used: dict[Window, Spans] = {}
        for window, tracks in islice(windows.items(), hops.MAX_WINDOWS):
            total += len(tracks)
            used[window] = tracks if total <= hops.MAX_SPANS else {}
            dropped["MAX_SPANS"] += len(tracks) - len(used[window])
        unknown = dict.fromkeys(windows.keys() - used.keys(), separate_clocks(count, ONE_WAY))
        dropped["MAX_WINDOWS"] += len(unknown)
        for (point, number), of_window in (clocks(count, used) | unknown).items():
            most = [[bound or 0 for bound in bounds] for bounds in of_window.most_ns]
            values = of_window.reference, of_window.ahead_ns, most, of_window.reason
            rows.append((points, point, number, *values))
    columns = zip(*rows, strict=True) if rows else [()] * len(_CLOCKS)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _CLOCKS.types, strict=True)]
    return pa.table(arrays, schema=_CLOCKS), +dropped


# --- rows -----------------------------------------------------------------------------------


def order_several(several: pa.Table, found: pa.Table) -> pa.Table:
    """Return the rows of messages by the clocks of their points.

    Each window has its own clock offset. Where the offset changes, the time of a point stands still
    instead of going back.
    """
    sightings, names = hops.sightings_of(several)
    timed, point = sightings.timed, several["point"].to_numpy()
    window = _windows(several, found, timed)
    reference, ahead, most = _padded(found)
    of_point = np.where(timed, reference[window, point], -1)
    rank = np.append(rank_of(names.streams.to_pylist()), 0)[sightings.stream]
    by_clock = sightings.message, of_point, point
    order = np.lexsort((sightings.offset, rank, sightings.frame, sightings.ns, *by_clock[::-1]))
    ns = (sightings.ns - ahead[window, point])[order]
    raise_times(
        dense_ids(*(column[order] for column in by_clock))[0], ns, np.zeros(len(ns), np.int64)
    )
    on_reference = np.empty(len(ns), np.int64)
    on_reference[order] = ns
    several_clocks = np.zeros(len(names.keys), bool)
    last = np.full(len(names.keys), -1, np.int64)
    message, references = sightings.message[timed], of_point[timed]
    last[message] = references
    several_clocks[message[last[message] != references]] = True
    reasons, texts = text_codes(found["reason"])
    codes = np.array([*map(_REASONS.index, texts.to_pylist()), -1])[reasons[window]]
    reason = np.where(several_clocks[sightings.message], codes, _REASONS.index("first"))
    clocked = Clocked(of_point, point, on_reference, window, reason, most)
    return hop_rows(sightings, names, clocked)


def _windows(several: pa.Table, found: pa.Table, timed: Any) -> Ints:
    """Return the row of the clocks of each sighting, 0 for one without a time."""
    (of_sighting, of_clock), _ = join_codes(several["points"], found["points"])
    keys = [
        np.concatenate([several[name].fill_null(0).to_numpy(), found[name].to_numpy()])
        for name in ("point", "window")
    ]
    ids, count = dense_ids(np.concatenate([of_sighting, of_clock]), *keys)
    row = np.zeros(count, np.int64)
    row[ids[len(of_sighting) :]] = np.arange(len(of_clock))
    return np.where(timed, row[ids[: len(of_sighting)]], 0)


def _padded(found: pa.Table) -> tuple[Any, Any, Any]:
    """Return references, offsets and bounds of each window as arrays, for the same many points."""
    rows = found.select(["reference", "ahead_ns", "most_ns"]).to_pylist()
    size = max((len(row["reference"]) for row in rows), default=1)
    reference, ahead = (np.zeros((len(rows), size), np.int64) for _ in range(2))
    most = np.zeros((len(rows), size, size), np.int64)
    for at, row in enumerate(rows):
        count = len(row["reference"])
        reference[at, :count], ahead[at, :count] = row["reference"], row["ahead_ns"]
        most[at, :count, :count] = row["most_ns"]
    return reference, ahead, most
