"""Findings: run the queries for all symptoms, and sort their causes by severity."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from wireyard.answers.symptoms import symptoms
from wireyard.errors import UsageError
from wireyard.layers.symptoms import MEASURES, MOST_PEERS, SEVERITIES, Symptom

if TYPE_CHECKING:
    from wireyard.answers import Tables
    from wireyard.answers.tables import Row
    from wireyard.layers.frame_files import FrameFiles

MOST_WORST: Final = 3
"""Destinations that a finding names."""
_PROOF: Final = ("source", "frame", "stream", "offset")
_OF_WORST: Final = ("destination", "count", "source", "frame")
_SPECIAL: Final = frozenset('"$`\\!')
"""Characters that mean something to bash between double quotes."""
_KNOWN = """
SELECT 1 FROM messages
WHERE $asked IN (destination, producer_client_id, producer, client)
UNION ALL
SELECT 1 FROM deliveries WHERE $asked IN (destination, consumer_client_id, consumer)
UNION ALL
SELECT 1 FROM sessions WHERE $asked IN (client_id, client)
UNION ALL
SELECT 1 FROM store_records WHERE $asked = destination
LIMIT 1
"""
Ask = Callable[[Symptom, str, "Mapping[str, Any] | None"], "list[Row]"]
"""Symptom, query and parameters -> rows."""
_NOUNS = ("message", "request", "time", "login", "connection", "subscription", "piece")


@dataclass(frozen=True)
class Finding:
    """A cause of problems, with its proof.

    The proof is a packet, given by its frame in the capture and its offset in the stream; or a
    stored record, which has no frame. It is one of the first of `worst`.
    """

    symptom: str
    severity: str
    subject: str
    """The destination concerned if there is only one, else the client, else the source."""
    destination: str | None
    """Null if there are several."""
    client: str | None
    count: int
    text: str
    source: str
    frame: int | None
    stream: str
    offset: int
    destinations: int
    worst: list[dict[str, Any]]
    """The destinations with the largest counts: ``destination, count, source, frame``."""
    producers: list[str]
    consumers: list[str]
    """The first clients that sent the messages, and those they were for; `MOST_PEERS` at most."""
    next: str
    """A command that shows more."""

    @property
    def about(self) -> list[str]:
        """The client and the destination; if there is neither, the source."""
        return [name for name in (self.client, self.destination) if name] or [self.subject]

    def ends(self, show: Callable[[str], str] = str) -> str:
        """Return the clients that sent, and those that should have received, as text.

        `show` returns a name as it is shown.
        """
        ends = (("from", self.producers), ("to", self.consumers))
        return " ".join(f"{word} {_first_of([*map(show, of)])}" for word, of in ends if of)

    def proof(self, files: FrameFiles) -> str:
        """Return the place of the packet or the record that proves it, as text."""
        if self.frame is None:
            return f"offset {self.offset} of {self.stream} in {self.source}"
        file, number = files.find(self.source, self.frame)
        return f"frame {number} of {file}"


def _first_of(names: Sequence[str]) -> str:
    """Return the first of some clients, and whether there are others, as text."""
    *shown, last = names
    if len(names) < MOST_PEERS:
        return " and ".join(filter(None, (", ".join(shown), last)))
    return f"{', '.join(shown)} and others"


def find_symptoms(
    tables: Tables,
    asked: str | None,
    *,
    shown_as: str,
    most: int | None = MOST_WORST,
    ask: Ask | None = None,
) -> list[Finding]:
    """Find all problems, worst first.

    If `asked` is a destination or client, only its problems are found; a `UsageError` is raised if
    there is no such one. `shown_as` are the inputs as on a command line. `most` is the number of
    destinations in `worst`; None for all. `ask` runs the query for a symptom; if None, each runs to
    its end.
    """
    if asked is not None and not is_known(tables, asked):
        near = tables.suggestion(asked)
        raise UsageError(f"there is no destination, client or file '{asked}'{near}")
    known = symptoms(tables.formats)
    noun = "topic" if tables.formats <= {"mqtt"} else "destination"
    given = None if asked is None else {"asked": asked}
    ask = ask or (lambda _, query, given: tables.rows(query, given))
    verdicts = {row["verdict"] for row in tables.rows("SELECT DISTINCT verdict FROM deliveries")}
    tried = {each.table for each in known if each.table}
    empty = {name for name in tried if not tables.rows(f"SELECT 1 FROM {name} LIMIT 1")}
    findings = [
        _finding(symptom, row, shown_as, noun)
        for symptom in known
        if not (symptom.verdicts and symptom.verdicts.isdisjoint(verdicts))
        and symptom.table not in empty
        for row in ask(symptom, _causes(symptom, most, narrowed=asked is not None), given)
    ]
    order = {symptom.code: place for place, symptom in enumerate(known)}
    return sorted(
        findings,
        key=lambda each: (
            SEVERITIES.index(each.severity), -each.count, order[each.symptom], each.subject,
            each.client or "", each.source,
        ),
    )  # fmt: skip


def is_known(tables: Tables, asked: str) -> bool:
    """Return whether there is a destination or a client of this name."""
    return bool(tables.rows(_KNOWN, {"asked": asked}))


def _causes(symptom: Symptom, most: int | None, *, narrowed: bool) -> str:
    """Return a query for the causes of a symptom, with the worst rows of each as structs.

    If `narrowed`, only rows of the destination or client ``$asked`` count.
    """
    named = {name for _, name, _, _ in Formatter().parse(symptom.text) if name}
    causes = sorted(named - MEASURES - {f"{noun}s" for noun in _NOUNS})
    by = ", ".join(("client", "if(client IS NULL, destination, NULL)", *causes))
    kept = "WHERE $asked IN (destination, client)" if narrowed else ""
    return f"""
SELECT client, if(count(DISTINCT destination) = 1, min(destination), NULL) AS destination,
  count(DISTINCT destination) AS destinations, sum(count)::BIGINT AS count,
  {_first("producers")} AS producers, {_first("consumers")} AS consumers,
  list_slice(list(row ORDER BY count DESC, destination, source, stream, "offset"), 1, {most or -1})
    AS worst
FROM (
  SELECT NULL::VARCHAR[] AS producers, NULL::VARCHAR[] AS consumers WHERE false
  UNION ALL BY NAME ({symptom.query.strip()}
)) row
{kept}
GROUP BY {by}
"""


def _first(peers: str) -> str:
    """Return SQL for the first names in the lists of several rows."""
    every = f"list_distinct(flatten(list({peers}) FILTER ({peers} IS NOT NULL)))"
    return f"list_slice(list_sort({every}), 1, {MOST_PEERS})"


def _finding(symptom: Symptom, row: Mapping[str, Any], shown_as: str, noun: str) -> Finding:
    worst = row["worst"]
    first, count, destinations = worst[0], row["count"], row["destinations"]
    several = f" on {destinations:,} {noun}s" if destinations > 1 else ""
    subject = row["destination"] or row["client"] or first["source"]
    words = {**first, "subject": subject, "party": row["client"] or subject}
    shown = {
        name: f"{each:,}" if isinstance(each, int | float) and "frame" not in name else each
        for name, each in words.items()
    }
    text = symptom.text.format(**shown, **_counted(count, several))
    if several and any(f"{{{measure}}}" in symptom.text for measure in MEASURES):
        text += f" ({first['destination']})"
    return Finding(
        symptom=symptom.code,
        severity=symptom.severity,
        subject=subject,
        destination=row["destination"],
        client=row["client"],
        count=count,
        text=text,
        destinations=destinations,
        worst=[{name: each[name] for name in _OF_WORST} for each in worst],
        producers=row["producers"] or [],
        consumers=row["consumers"] or [],
        next=_command(symptom.next, words, shown_as),
        **{name: first[name] for name in _PROOF},
    )


def _command(template: str, words: Mapping[str, Any], shown_as: str) -> str:
    """Return a command for bash; a word that begins with a dash comes last, behind ``--``."""
    if words.get("verdict") is None:  # it has no delivery
        template = template.replace("{party} --verdict {verdict}", "{subject}")
    parts: list[str] = []
    last: list[str] = []
    for part in shlex.split(template):
        if part == "{input}":
            parts.append(shown_as)
        elif " " in part:  # SQL, where a quote is doubled
            literals = {name: str(value).replace("'", "''") for name, value in words.items()}
            parts.append(quote(part.format(**literals)))
        else:
            word = part.format(**words)
            dashed = part in ("{subject}", "{party}", "{client}") and word.startswith("-")
            (last if dashed else parts).append(quote(word))
    return " ".join([*parts, *(["--", *last] if last else [])])


def quote(word: str) -> str:
    """Return a word as bash reads it, in printable characters."""
    if word.isprintable():
        plain = "'" in word and _SPECIAL.isdisjoint(word)
        return f'"{word}"' if plain else shlex.quote(word)
    shown = (
        f"\\{char}" if char in "'\\" else char if char.isprintable() else _escaped(char)
        for char in word
    )
    return f"$'{''.join(shown)}'"


def _escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))


def _counted(count: int, several: str) -> dict[str, str]:
    """Return a count with each noun, under the noun's plural."""
    return {f"{noun}s": f"{count:,} {noun}{'s' * (count != 1)}{several}" for noun in _NOUNS}
