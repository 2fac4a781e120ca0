"""Selectors by the text of JMS 2.0, section 3.8.1, sentence by sentence."""

from __future__ import annotations

from typing import Any

import pytest

from wireyard.broker.jmq.selector import MAX_CHARACTERS, MAX_DEPTH, Selector, SelectorError

CAR: dict[str, Any] = {
    "JMSType": "car", "JMSPriority": 4, "color": "blue", "weight": 2600, "big": 2**60, "half": 0.5,
    "isNew": True, "isOld": False, "phone": "12993", "word": "loose", "under": "_foo",
    "quote": "it's", "percent": "100%", "empty": "", "_own": 1, "$own": 2, "größe": 3,
    "lines": "a\nb",
}  # fmt: skip


def is_selected(text: str, **more: Any) -> bool:
    return Selector(text).matches(CAR | more)


TRUE = [
    # literals
    "quote = 'it''s'", "weight = 2600", "weight = +2600", "-weight = -2600", "weight = 2600L",
    "weight = 0xA28", "weight = 05050", "half = .5", "half = 5.E-1", "half = 0.5f", "half = 5e-1d",
    "weight = 26e2", "weight = 2600.0", "big = 1152921504606846976", "isNew = TRUE",
    "isNew = true", "isOld = False", "empty = ''",
    # identifiers, reserved words in any case
    "_own = 1", "$own = 2", "größe = 3", "color IS NOT NULL", "missing is null", "Color IS NULL",
    # logic, and its order
    "isNew AND NOT isOld", "isOld OR isNew", "isNew OR isNew AND isOld", "NOT isOld AND isNew",
    "NOT (isOld AND isNew)", "(isNew OR isNew) AND isNew", "NOT NOT isNew", "isNew",
    # comparisons
    "weight > 2500", "weight >= 2600", "weight < 2601", "weight <= 2600", "weight <> 2601",
    "color <> 'red'", "isNew <> FALSE", "half < 1", "1 > half", "'blue' = color", "weight > 2500.5",
    "weight=1or isNew",
    # arithmetic: signs, then products, then sums, from the left
    "weight + 2 * 2 = 2604", "(weight + 2) * 2 = 5204", "weight - 100 - 100 = 2400",
    "weight / 2 / 2 = 650", "7 / 2 = 3", "-7 / 2 = -3", "7 / 2.0 = 3.5", "- - weight = 2600",
    "big * 16 = 0", "weight * half = 1300", "1 / 0.0 > big", "-weight + 1 = -2599",
    # BETWEEN, IN, LIKE
    "weight BETWEEN 2600 AND 2600", "weight NOT BETWEEN 1 AND 2599", "half BETWEEN 0 AND 1",
    "weight + 1 BETWEEN 2601 AND 1 + 2600", "color IN ('red', 'blue')", "color NOT IN ('red')",
    "phone LIKE '12%3'", "word LIKE 'l_se' OR word LIKE 'l__se'", "under LIKE '\\_%' ESCAPE '\\'",
    "phone NOT LIKE '13%3'", "percent LIKE '100!%' ESCAPE '!'", "empty LIKE ''", "empty LIKE '%'",
    "color LIKE '%'", "color LIKE 'b%u%'", "color LIKE '%l%u%e'", "lines LIKE 'a_b'",
    "color LIKE '____'", "phone LIKE '%9%3' AND phone LIKE '1%9%'", "color LIKE 'blue'",
    # header fields
    "JMSType = 'car' AND color = 'blue' AND weight > 2500", "JMSPriority BETWEEN 0 AND 9",
    "JMSCorrelationID IS NULL",
]  # fmt: skip

NOT_TRUE = [
    # identifiers are case sensitive
    "Color = 'blue'",
    # unknown: NOT does not make it true, OR with true does, AND with false is false
    "missing = 1", "NOT (missing = 1)", "missing <> 1", "missing > 1 AND isNew", "NOT missing",
    "missing BETWEEN 1 AND 2", "missing NOT BETWEEN 1 AND 2", "missing IN ('a')",
    "missing NOT IN ('a')", "missing LIKE '%'", "missing NOT LIKE 'a'", "missing + 1 = 1",
    "NOT (missing = 1 AND isNew)", "weight BETWEEN missing AND 3000", "missing = missing",
    # values of types that cannot be compared, as false
    "color = weight", "color = isNew", "weight = isNew", "color > weight", "color < phone",
    # a value that is no boolean is no condition
    "NOT color", "color", "weight",
    # text in a number position
    "color + 1 = 1", "color BETWEEN 1 AND 2", "color NOT BETWEEN 1 AND 2", "color IN ('Blue')",
    # IN and LIKE of what is no text: NOT does not make them true
    "weight IN ('2600')", "weight NOT IN ('2600')", "NOT weight IN ('x')", "isNew NOT IN ('x')",
    "weight LIKE '2600'", "weight NOT LIKE 'x'", "NOT weight LIKE 'x'",
    "phone LIKE '12%4'", "word LIKE 'l_se'",
    "under LIKE '\\_bar' ESCAPE '\\'",
    "word LIKE '%loose_'", "color LIKE 'b%b%e'", "empty LIKE '_'", "percent LIKE '10!%' ESCAPE '!'",
    "7 / 0 = 0", "isNew = 'TRUE'",
]  # fmt: skip

WRONG = [
    "this is ( not a selector", "color =", "= 1", "(color = 'a'", "color = 'a')",
    "color = 'a", "color == 1", "color != 1", "color IN ()", "color IN ('a' 'b')", "color IN (1)",
    "color LIKE 5", "color LIKE 'a' ESCAPE 'ab'", "color LIKE 'a!' ESCAPE '!'", "color IS 1",
    "color BETWEEN 1", "color BETWEEN 1 OR 2", "1 LIKE 'a'", "'a' IN ('a')", "(color) IS NULL",
    "1 IS NULL", "NULL = 1", "'a' > 'b'", "color > 'b'", "isNew > TRUE", "1 = 'a'", "TRUE = 1",
    "1", "'a'", "1 AND isNew", "'a' OR isNew", "NOT 1", "'a' + 1 = 2", "-'a' = 1", "-TRUE = 1",
    "1x = 1", "color = 09", "color color", "color = 1 = 1", "AND isNew", "isNew AND", "not",
    "a.b = 1",
    "JMSDestination = 'x'", "JMSReplyTo IS NULL", "JMSExpiration > 0", "\"color\" = 'a'",
    "color = ?",
    "1 BETWEEN 'a' AND 'b'", "(isNew AND isOld) = 1",
]  # fmt: skip


@pytest.mark.parametrize("text", TRUE)
def test_is_true(text: str) -> None:
    assert is_selected(text)


@pytest.mark.parametrize("text", NOT_TRUE)
def test_is_false_or_unknown(text: str) -> None:
    assert not is_selected(text)


@pytest.mark.parametrize("text", WRONG)
def test_is_no_selector(text: str) -> None:
    with pytest.raises(SelectorError) as raised:
        Selector(text)
    assert "\n" not in str(raised.value)


VALUES = {"t": "isNew", "f": "isOld", "u": "missing = 1"}
AND = {"tt": "t", "tf": "f", "tu": "u", "ff": "f", "fu": "f", "uu": "u"}
OR = {"tt": "t", "tf": "t", "tu": "t", "ff": "f", "fu": "u", "uu": "u"}
NOT = {"t": "f", "f": "t", "u": "u"}


def truth(text: str) -> str:
    """Return which of the three values a condition has."""
    if is_selected(text):
        return "t"
    return "f" if is_selected(f"NOT ({text})") else "u"


@pytest.mark.parametrize(("word", "table"), [("AND", AND), ("OR", OR)])
def test_three_valued_logic(word: str, table: dict[str, str]) -> None:
    for pair, expected in table.items():
        a, b = (VALUES[one] for one in pair)
        assert truth(f"{a} {word} {b}") == truth(f"{b} {word} {a}") == expected, pair
    for one, expected in NOT.items():
        assert truth(f"NOT ({VALUES[one]})") == expected


def test_equivalences() -> None:
    for value in (None, 1, 2, 3, "a", "b", True, 1.5):
        given = {} if value is None else {"x": value}
        for short, long in (
            ("x BETWEEN 1 AND 2", "x >= 1 AND x <= 2"),
            ("x NOT BETWEEN 1 AND 2", "x < 1 OR x > 2"),
            ("x IN ('a', 'c')", "(x = 'a') OR (x = 'c')"),
            ("x NOT IN ('a', 'c')", "(x <> 'a') AND (x <> 'c')"),
        ):
            assert Selector(short).matches(given) == Selector(long).matches(given), (short, value)


def test_limits() -> None:
    with pytest.raises(SelectorError, match="characters"):
        Selector("a = 1 OR " * MAX_CHARACTERS)
    for opening, closing in (("(", ")"), ("NOT ", ""), ("- ", "")):
        end = "x = 1" if opening == "- " else "isNew"
        Selector(opening * MAX_DEPTH + end + closing * MAX_DEPTH)
        with pytest.raises(SelectorError, match="nested"):
            Selector(opening * (MAX_DEPTH + 1) + end + closing * (MAX_DEPTH + 1))


def test_long_chains_do_not_nest() -> None:
    for chain in ("x = 1 OR " * 800 + "isNew", "isNew AND " * 700 + "isNew"):
        assert is_selected(chain)
    assert is_selected("1" + " + 1" * 2000 + " = 2001")


def test_like_takes_no_time_out_of_proportion() -> None:
    pattern = "%a" * 1000 + "%"
    assert not is_selected(f"x LIKE '{pattern}b'", x="a" * 5000)  # backtracking would take years


def test_equal_texts_are_one_selector() -> None:
    assert Selector.of("a = 1") is Selector.of("a = 1")
