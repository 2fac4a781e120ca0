"""Compiled detection by the first bytes of many streams, compared with the scalar reader."""

from __future__ import annotations

from collections import Counter
from functools import cache
from importlib import import_module
from itertools import cycle
from random import Random

import numpy as np
import pytest

from tests.mutations import mutate_packet, subject_of
from wireyard.formats import FIRST_BYTES, get_format, labels, names, sniff
from wireyard.formats.base import Format, Shown

HEAD_BYTES = 72


@cache
def heads() -> list[bytes]:
    """Return the first bytes of packets of all formats, half of them damaged."""
    found, rng = [], Random(5)
    subjects = [subject_of(name) for name in names()]
    corpora = [subject.corpus(None) for subject in subjects]
    for (subject, corpus), _ in zip(cycle(zip(subjects, corpora, strict=True)), range(3000)):
        (packet, *_) = subject.packets(subject, corpus, rng, 1)
        if rng.random() < 0.5:
            packet = mutate_packet(packet, rng, subject)
        found.append(packet[: rng.choice((HEAD_BYTES, HEAD_BYTES, HEAD_BYTES, 30, 5, 3))])
    return found


def sniffed(format: Format, some: list[bytes]) -> tuple[list[Shown], list[int]]:
    """Return what each head has `Shown`, and the context of the stream that answers it."""
    bounds = np.cumsum([0, *map(len, some)])
    contexts = np.full(len(some), format.context)
    sniff_heads = import_module(format.columnar.module).sniff_heads
    data = np.frombuffer(b"".join(some), np.uint8)
    shown = sniff_heads(data, bounds[:-1], bounds[1:], contexts)
    return [Shown(one) for one in shown.tolist()], contexts.tolist()


@pytest.mark.parametrize("label", [one for one in labels() if one[:4] in ("jmq", "jmq/", "mqtt")])
def test_what_heads_show(label: str) -> None:
    format, counts = get_format(label), Counter[Shown]()
    for head, shown, context in zip(heads(), *sniffed(format, heads()), strict=True):
        counts[shown] += 1
        if shown is Shown.NOTHING:
            continue
        assert FIRST_BYTES[head[0]] == format.name
        assert context == format.contexts.answer(head, format.context)
        found = sniff(head)
        if shown is not Shown.ANSWER:
            assert found is not None and found.name == format.name
        assert format.evidence.opens(head) is (shown is Shown.CLIENT)
    kinds = {"jmq": (Shown.EITHER,), "mqtt": (Shown.CLIENT, Shown.ANSWER)}[format.name]
    assert counts.keys() == {Shown.NOTHING, *kinds}
    assert all(counts[kind] > 20 for kind in kinds)


def test_no_other_format_begins_with_these_bytes() -> None:
    found = Counter[str]()
    for head in heads():
        if head and (one := sniff(head)) is not None:
            found[one.name] += 1
            assert FIRST_BYTES.get(head[0], one.name) == one.name
    assert {*FIRST_BYTES.values()} <= found.keys()
