"""A JDK as a judge: what ``ObjectInputStream`` reads of the streams that are written here."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.test_java_golden import GOLDEN
from tests.test_java_views import VIEWS
from wireyard import java

# Prints class and text of every value, by name; other text than ASCII as Java source has it.
SOURCE = """
import java.io.*;
import java.util.*;

public class ReadTable {
    static String ascii(String text) {
        StringBuilder out = new StringBuilder();
        for (char unit : text.toCharArray())
            out.append(unit > 32 && unit < 127 ? "" + unit : String.format("<%04x>", (int) unit));
        return out.toString();
    }

    public static void main(String[] arguments) throws Exception {
        ObjectInputStream in = new ObjectInputStream(new FileInputStream(arguments[0]));
        Hashtable<?, ?> table = (Hashtable<?, ?>) in.readObject();
        if (in.read() >= 0) throw new IOException("bytes behind the table");
        for (Map.Entry<?, ?> entry : table.entrySet()) {
            Object value = entry.getValue();
            String text = value instanceof int[] ? Arrays.toString((int[]) value) : "" + value;
            System.out.println(ascii((String) entry.getKey()) + " " + value.getClass().getName()
                + " " + ascii(text));
        }
    }
}
"""


def read_table(data: bytes, folder: Path) -> dict[str, tuple[str, str]]:
    """Return class and text of each value that a JDK reads of a serialized Hashtable."""
    if shutil.which("java") is None:
        if os.environ.get("WIREYARD_PEERS") == "require":
            raise FileNotFoundError("java")
        pytest.skip("no java on the PATH")
    source = folder / "ReadTable.java"
    source.write_text(SOURCE)
    table = folder / "table"
    table.write_bytes(data)
    command = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", str(source), str(table)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    rows = (line.split(" ") for line in done.stdout.splitlines())
    return {name: (kind, text) for name, kind, text in rows}


def golden(name: str) -> bytes:
    return bytes.fromhex({**GOLDEN, **VIEWS}[name][0])


@pytest.mark.peer
def test_every_type_is_read_as_meant(tmp_path: Path) -> None:
    entries: dict[str, tuple[str, Any]] = {
        "true": ("boolean", True),
        "true2": ("boolean", True),
        "false": ("boolean", False),
        "byte": ("byte", -128),
        "short": ("short", -300),
        "five": ("integer", 5),
        "five2": ("integer", 5),
        "five3": ("long", 5),
        "integer": ("integer", -(2**31)),
        "long": ("long", 2**63 - 1),
        "float": ("float", 1.5),
        "double": ("double", 1e10),
        "nan": ("double", math.nan),
        "string": ("string", "é\0\U0001f600\ud800"),
        "é": ("string", ""),
        "big": ("string", "x" * 70_000),
        "table": ("object", golden('Hashtable {a: 1, b: "x"}')),
        "list": ("object", golden("List.of(1, 2)") + bytes(200)),
        "view": ("object", golden('Collections.unmodifiableList(ArrayList ["x"])')),
        "decimal": ("object", golden('new BigDecimal("-1.50")')),
        "array": ("object", golden("new int[] {-1, 2}")),
        "last": ("integer", 5),
    }
    lang = "java.lang."
    expected = {
        "true": (lang + "Boolean", "true"),
        "true2": (lang + "Boolean", "true"),
        "false": (lang + "Boolean", "false"),
        "byte": (lang + "Byte", "-128"),
        "short": (lang + "Short", "-300"),
        "five": (lang + "Integer", "5"),
        "five2": (lang + "Integer", "5"),
        "five3": (lang + "Long", "5"),
        "integer": (lang + "Integer", "-2147483648"),
        "long": (lang + "Long", "9223372036854775807"),
        "float": (lang + "Float", "1.5"),
        "double": (lang + "Double", "1.0E10"),
        "nan": (lang + "Double", "NaN"),
        "string": (lang + "String", "<00e9><0000><d83d><de00><d800>"),
        "<00e9>": (lang + "String", ""),
        "big": (lang + "String", "x" * 70_000),
        "table": ("java.util.Hashtable", "{b=x,<0020>a=1}"),
        "list": ("java.util.ImmutableCollections$List12", "[1,<0020>2]"),
        "view": ("java.util.Collections$UnmodifiableRandomAccessList", "[x]"),
        "decimal": ("java.math.BigDecimal", "-1.50"),
        "array": ("[I", "[-1,<0020>2]"),
        "last": (lang + "Integer", "5"),
    }
    section = java.write_hashtable(entries)
    assert read_table(section, tmp_path) == expected
    # What was read of it, objects taken out, makes a table with the same meaning.
    again = java.write_hashtable(java.read_hashtable(section))
    assert read_table(again, tmp_path) == expected
