"""The page of a wire format, made from its ``layout.py``.

Nothing here depends on a format. Every public table of a layout becomes a section with the name of
the table, in the order of the file. The string under the table is the section's text, and the
comments beside the entries of a dictionary are a column. A page has nothing else.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

from wireyard.formats import get_format
from wireyard.layout import Column, Layout
from wireyard.schema import CAPTURED, COMMON, arrow_type

__all__ = ["format_page", "markdown"]

_RULINGS = """
[errata.md](../errata.md) has the rulings on contradictions in the specification, or between it
and the field. Sizes up to {most} bytes are accepted unless the caller sets another limit.
"""
_DIALECTS = "Variants that nothing on the wire shows; they are named after a slash."


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield a table."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
    yield ""


def format_page(name: str) -> Iterator[str]:
    """Yield the lines of the page about the format `name`."""
    format = get_format(name)
    package = inspect.getmodule(import_module(f"wireyard.formats.{name}"))
    source = _Source(import_module(f"wireyard.formats.{name}.layout"))
    assert package is not None and package.__doc__ is not None
    title, _, summary = package.__doc__.splitlines()[0].partition(": ")
    yield from (f"# {title}", "", summary[:1].upper() + summary[1:])
    yield from (*_RULINGS.format(most=format.framing.max_packet_bytes).splitlines(), "")
    yield from _text(source.introduction)
    shown: list[Any] = []
    constants = []
    for public in source.public:
        value = getattr(source.module, public)
        if isinstance(value, int | str | bytes):
            constants.append((f"`{public}`", _cell(value), " ".join(source.doc(public).split())))
        elif any(value is one or _same_values(value, one) for one in shown):
            continue  # The same things by another key.
        elif table := list(_table(source, public, value)):
            shown.append(value)
            yield from (f"## {_words(public)}", "", *_text(source.doc(public)), *table)
    yield from ("## Constants", "", *markdown(("name", "value", "meaning"), constants))
    yield from ("## Columns of a row", "", *_columns((*COMMON, *format.columns)))
    yield from ("## More columns of rows from captures", "", *_columns(CAPTURED))
    for other, columns in format.inner.other_rows.items():
        yield from (f"## Columns of a row of `{other}`", "", *_columns(tuple(columns.values())))
    if format.dialects:
        yield from ("## Dialects", "", _DIALECTS, "")
        dialects = ((f"`{name}/{key}`", dialect.doc) for key, dialect in format.dialects.items())
        yield from markdown(("name", "meaning"), dialects)


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _text(doc: str) -> list[str]:
    """Return a docstring as Markdown: a block after a double colon is code."""
    lines: list[str] = []
    in_block = False
    for line in doc.splitlines():
        if in_block and line.strip() and not line.startswith(" "):
            lines[-1:] = ["```", ""]
            in_block = False
        elif line.endswith("::") and not in_block:
            lines += [line.removesuffix("::") + ":"] if line != "::" else []
            lines += ["", "```"] if line != "::" else ["```"]
            in_block = True
            continue
        if line.strip() or lines[-1:] not in ([""], ["```"]):
            lines.append(line)
    if in_block:
        lines.append("```")
    return [*(line.removeprefix("    ") for line in lines), ""] if lines else []


# --- tables ---------------------------------------------------------------------------------


def _table(source: _Source, name: str, value: Any) -> Iterator[str]:
    """Yield a public name's table, nothing if it has no form of one."""
    if isinstance(value, Layout):
        yield from _header(value)
    elif isinstance(value, Mapping):
        yield from _mapping(source, name, value)
    elif isinstance(value, tuple) and value and all(map(is_dataclass, value)):
        if not isinstance(value[0], Column):
            yield from _records(value)
    elif isinstance(value, tuple) and value and all(isinstance(one, int | str) for one in value):
        yield from (", ".join(map(_cell, value)), "")


def _mapping(source: _Source, name: str, value: Mapping[Any, Any]) -> Iterator[str]:
    values = list(value.values())
    if all(isinstance(one, Column) for one in values):
        return  # Columns have sections of their own.
    if all(isinstance(one, Layout) for one in values):
        for layout in dict.fromkeys(values):
            yield from (f"### {layout.name}", "", *_header(layout))
    elif all(is_dataclass(one) for one in values):
        yield from _records(sorted(values, key=lambda one: one.code))
    elif all(isinstance(key, str) and isinstance(one, int) for key, one in value.items()):
        digits = 4 if max(values) < 1 << 16 else 8
        notes = source.comments(name)
        rows = [(key, f"{bit:#0{digits + 2}x}", notes.get(key, "")) for key, bit in value.items()]
        yield from markdown(("flag", "bit", "meaning"), rows)
    elif all(isinstance(text, str) for pair in value.items() for text in pair):
        yield from markdown(("column", "follows from"), ((f"`{k}`", v) for k, v in value.items()))
    else:
        head = ("code", "name" if isinstance(values[0], str) else "values")
        yield from markdown(head, ((key, _cell(one)) for key, one in value.items()))


def _header(layout: Layout) -> Iterator[str]:
    """Yield the fields of a header."""
    return markdown(
        ("offset", "bytes", "field", "type", "unit", "meaning", "section"),
        (
            (f.offset, f.width, f"`{f.name}`", f.kind, f.unit or "", f.doc, f.spec)
            for f in layout.fields
        ),
    )


def _records(records: Sequence[Any]) -> Iterator[str]:
    """Yield values that have fields, one a line."""
    names = [field.name for field in fields(records[0])]
    rows = ((_field(name, getattr(one, name)) for name in names) for one in records)
    return markdown(names, (list(row) for row in rows))


def _field(name: str, value: Any) -> str:
    return f"`{value}`" if name == "name" else _cell(value)


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bytes():
            return value.hex()
        case Layout():
            return ", ".join(f"`{name}`" for name in value.names)
        case frozenset():
            return ", ".join(map(str, sorted(value)))
    return str(value)


def _columns(rows: Sequence[Column]) -> Iterator[str]:
    """Yield the columns of a row."""
    return markdown(
        ("column", "type", "unit", "meaning", "section"),
        ((f"`{c.name}`", arrow_type(c.kind), c.unit or "", c.doc, c.spec) for c in rows),
    )


def _same_values(one: Any, other: Any) -> bool:
    return (
        isinstance(one, Mapping)
        and isinstance(other, Mapping)
        and [*map(id, one.values())] == [*map(id, other.values())]
    )


# --- what is only in the source -------------------------------------------------------------


class _Source:
    """A layout's module and its text: the order of its names, their texts, comments in tables.

    The tables that it has from a module shared by formats come last.
    """

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        text = inspect.getsource(module)
        shared = [
            inspect.getsource(import_module(node.module))
            for node in ast.parse(text).body
            if isinstance(node, ast.ImportFrom)
            and node.module
            and any(each.asname is None and each.name in module.__all__ for each in node.names)
        ]
        self._text = "".join((text, *shared))

    @property
    def introduction(self) -> str:
        """The docstring of the module after its first line."""
        return inspect.cleandoc(self.module.__doc__ or "").partition("\n")[2].strip("\n")

    @cached_property
    def _assigned(self) -> dict[str, tuple[ast.expr, str]]:
        """The value and the text of each name, in the order of the file."""
        found = {}
        body = ast.parse(self._text).body
        for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    pass
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    pass
                case _:
                    continue
            match after:
                case ast.Expr(value=ast.Constant(value=str(doc))):
                    found[name] = value, inspect.cleandoc(doc)
                case _:
                    found[name] = value, ""
        return found

    @property
    def public(self) -> list[str]:
        """The names the module offers, in the order of the file."""
        return [name for name in self._assigned if name in self.module.__all__]

    def doc(self, name: str) -> str:
        """Return the string under a name."""
        return self._assigned[name][1]

    def comments(self, name: str) -> dict[str, str]:
        """Return the comments beside the entries of a dictionary, by key."""
        lines = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(self._text).readline)
            if token.type == tokenize.COMMENT
        }
        return {
            key.value: lines[key.lineno]
            for node in ast.walk(self._assigned[name][0])
            if isinstance(node, ast.Dict)
            for key in node.keys
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.lineno in lines
        }
