"""``wireyard conform``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli import exits
from wireyard.cli.asking.answers import columns, out_option, wrapped
from wireyard.cli.asking.sql import WRITERS
from wireyard.cli.options import FOLDER, examples
from wireyard.cli.output import open_output
from wireyard.cli.replay import check_host

if TYPE_CHECKING:
    from wireyard.conform.judging import Judged, Result, Tally

_WIDTHS = (15, 7, 10, 200)
_VERSIONS = {4: "3.1.1", 5: "5.0"}


@click.command(
    "conform",
    epilog=examples(
        "wireyard conform localhost:1883",
        "wireyard conform 'mosquitto -p {port}' --rule 'MQTT-3.3*'",
        "wireyard conform 'mosquitto -p {port}' 'wireyard broker --port {port}' --out md",
    ),
)
@click.argument("brokers", metavar="BROKER...", nargs=-1, required=True)
@click.option("--rule", default="*", metavar="NUMBER",
              help="Only rules with this number; with wildcards as in a shell.")  # fmt: skip
@click.option("--name", "names", multiple=True, metavar="TEXT",
              help="What a broker is called, in their order, if it does not say so.")  # fmt: skip
@click.option("--record", type=FOLDER, metavar="DIR",
              help="Write what passes as captures into this folder.")  # fmt: skip
@click.option("--yes-to", metavar="HOST",
              help="Allow the broker of this host, if it is not on this machine.")  # fmt: skip
@out_option("A table of rules, a row for each conversation, or a table of brokers for a page.",
            "csv", "md")  # fmt: skip
def command(
    brokers: Sequence[str],
    rule: str,
    names: Sequence[str],
    record: str | None,
    yes_to: str | None,
    out: str,
) -> int:
    """Find out whether brokers keep the rules of MQTT 3.1.1 and 5.0.

    Some hundred small conversations, each for a rule by its number: packets that a broker has to
    refuse, and what it has to do with all others. BROKER is an address, or a command with {port}
    that starts a broker. It should have no users and no other clients. Exit status 1 if any
    conversation was not as it has to be.
    """
    from wireyard.conform.judging import judge
    from wireyard.replay.brokers import running

    judged: dict[str, Judged] = {}
    for number, (broker, name) in enumerate(zip_longest(brokers, names[: len(brokers)]), 1):
        with running(broker) as listeners:
            address = listeners[None]
            check_host(address, yes_to, "gets some hundred connections with broken packets")
            folder = record and (record if len(brokers) == 1 else f"{record}/{number}")
            found = judge(address, rules=rule, record=folder)
        judged[name or found.version or broker] = found
    if out in ("text", "md"):
        for line in _page(judged) if out == "md" else _text(judged):
            exits.say(line)
    else:
        with open_output(None, binary=False) as file:
            WRITERS[out](_table(judged), file)
    failed = any(result.failures for each in judged.values() for result in each.results)
    return exits.DATA_LOST if failed else exits.DONE


def _table(judged: dict[str, Judged]) -> Any:
    """Return a row for each conversation; one with several failures has several."""
    import pyarrow as pa

    names = ("broker", "version", "rule", "conversation", "result", "failed_rule", "text")
    return pa.Table.from_pylist(
        [
            dict(zip(names, (broker, *_cells(result), *failure), strict=True))
            for broker, each in judged.items()
            for result in each.results
            for failure in _outcomes(result)
        ],
        pa.schema([(name, pa.string()) for name in names]),
    )


def _cells(result: Result) -> tuple[str, str, str]:
    one = result.conversation
    return _VERSIONS[one.talk.version], one.number, one.name


def _outcomes(result: Result) -> Sequence[tuple[str, str | None, str | None]]:
    return [("failed", *failure) for failure in result.failures] or [("ok", None, None)]


def _text(judged: dict[str, Judged]) -> Iterator[str]:
    """Yield a table of rules for each broker, with what was not as it has to be."""
    for broker, each in judged.items():
        kept = sum(not result.failures for result in each.results)
        yield f"{broker}: {kept:,} of {len(each.results):,} conversations as they have to be"
        yield ""
        yield columns(_WIDTHS, "rule", "MQTT", "kept", "")
        for one in each.tallies():
            count = f"{one.kept:,} of {one.of:,}" if one.of else "broken"
            yield columns(_WIDTHS, one.number, _VERSIONS[one.version], count, one.text)
            for failure in one.failures:
                yield from wrapped(failure, 4)
        yield ""


def _page(judged: dict[str, Judged]) -> Iterator[str]:
    """Yield a table of rules and brokers in Markdown."""
    found = {
        broker: {(one.version, one.number, one.text): one for one in each.tallies()}
        for broker, each in judged.items()
    }
    rules = {key: one.order for of_one in found.values() for key, one in of_one.items()}
    yield f"| rule | MQTT | | {' | '.join(judged)} |"
    yield "|---" * (3 + len(judged)) + "|"
    for key in sorted(rules, key=rules.__getitem__):
        version, number, text = key
        cells = (_cell(of_one.get(key)) for of_one in found.values())
        yield f"| {number} | {_VERSIONS[version]} | {text} | {' | '.join(cells)} |"


def _cell(tally: Tally | None) -> str:
    if tally is None:
        return "-"
    if not tally.failures:
        return "ok"
    return f"{tally.kept} of {tally.of}" if tally.of else "broken"
