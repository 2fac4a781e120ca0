"""Well-formed packets of every grammar come back byte for byte, however they are read and written.

``python -m tests.exact`` goes through as many as it is given, and prints the seed of a case that
fails.
"""

from __future__ import annotations

import pytest

from tests.exact import GRAMMARS, check_case


@pytest.mark.parametrize("name", GRAMMARS)
def test_any_well_formed_packet_comes_back(name: str) -> None:
    check_case(name, 0, 200)
