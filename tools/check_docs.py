"""Check the documents: links, help texts, generated pages, and forbidden texts.

`python -m tools.check_docs` prints a line for each finding, and exits with 1 if there is any.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
CLI_DOCUMENT = ROOT / "docs" / "cli.md"
GENERATOR = "tools.generate_docs"

LINK = re.compile(r"\[[^\]]*\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)")
CODE = re.compile(r"^ {0,3}```.*?^ {0,3}```[^\n]*$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
# Paths of one machine and addresses of package indexes mean nothing to a reader.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.~-])/(?:root|work|tmp|farm)/\w"),
    "the address of a package index": re.compile(
        r"\bpypi\.\w+|pythonhosted|\brepo\d?\.maven|\bmaven\.org|\bdeb\.debian|\bnpmjs\b"
        r"|--(?:extra-)?index-url|\w/simple/"
    ),
}


def tracked() -> list[Path]:
    """Return all files of the project: those in git, and untracked ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (ROOT / name for name in sorted(listed.stdout.split("\0")) if name)
    return [path for path in paths if path.is_file()]


def anchors(document: Path) -> set[str]:
    """Return the anchors of a Markdown file's headings."""
    text = CODE.sub(
        lambda code: code[0].strip("`") if "\n" not in code[0] else "", document.read_text("utf-8")
    )
    found: set[str] = set()
    for heading in HEADING.findall(text):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        # The second heading of the same text gets -1, the third -2.
        free = (
            name
            for n in range(len(found) + 1)
            if (name := f"{slug}-{n}" if n else slug) not in found
        )
        found.add(next(free))
    return found


def check_links(documents: list[Path]) -> Iterator[str]:
    for document in documents:
        # Code is blanked, not removed, to keep line numbers.
        text = CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), document.read_text("utf-8"))
        for link in LINK.finditer(text):
            target, _, anchor = link[1].partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            line = text.count("\n", 0, link.start()) + 1
            place = (document.parent / target) if target else document
            if not place.exists():
                yield f"{document.relative_to(ROOT)}:{line}: no such file: {link[1]}"
            elif anchor and place.suffix == ".md" and anchor not in anchors(place):
                yield f"{document.relative_to(ROOT)}:{line}: no such heading: {link[1]}"


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield every command of a group, nested ones included, with its full name."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        yield inner.command_path, command
        if isinstance(command, click.Group):
            yield from commands(command, inner)


def check_commands() -> Iterator[str]:
    from tools.man_pages import pages
    from wireyard.cli import main

    paged = {name for name, _ in pages()}

    described = CLI_DOCUMENT.read_text("utf-8") if CLI_DOCUMENT.exists() else ""
    for words, command in commands(main, click.Context(main, info_name="wireyard")):
        if not command.help:
            yield f"{words}: has no help"
        if words not in described:
            yield f"{CLI_DOCUMENT.relative_to(ROOT)}: does not mention '{words}'"
        if words.replace(" ", "-") not in paged:
            yield f"{words}: has no man page"
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden and not parameter.help:
                yield f"{words}: option {parameter.opts[0]} has no help"


def check_generated() -> Iterator[str]:
    done = subprocess.run(
        [sys.executable, "-m", GENERATOR, "--check"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        yield done.stdout.strip() or f"{GENERATOR} --check failed"


def check_forbidden(files: list[Path]) -> Iterator[str]:
    for path in files:
        data = path.read_bytes()
        if b"\0" in data or path == Path(__file__).resolve():
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            for kind, pattern in FORBIDDEN.items():
                if match := pattern.search(line):
                    yield f"{path.relative_to(ROOT)}:{number}: {kind}: {match[0]}"


def main() -> int:
    """Run every check; return the exit status."""
    files = tracked()
    documents = [path for path in files if path.suffix == ".md"]
    findings = [
        *check_links(documents),
        *check_commands(),
        *check_generated(),
        *check_forbidden(files),
    ]
    print(*findings, sep="\n", end="\n" if findings else "")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
