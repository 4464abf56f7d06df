"""The programs of docs/python.md run as they stand there, and print what the page says."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text()
EXAMPLES = re.findall(r"## (.+?)\n.*?```python\n(.*?)```\n\nIt prints\n\n```text\n(.*?)```", PAGE, re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def test_the_page_has_four_programs_and_the_test_runs_all_of_them():
    assert len(EXAMPLES) == PAGE.count("```python") == 4


@pytest.mark.parametrize(("name", "program", "printed"), EXAMPLES, ids=[name for name, *_ in EXAMPLES])
def test_an_example_prints_what_the_page_says(name, program, printed, capsys):
    exec(compile(program, f"docs/python.md: {name}", "exec"), {})
    out = capsys.readouterr().out
    assert NUMBER.sub("#", out) == NUMBER.sub("#", printed)
    numbers, expected = ([float(number) for number in NUMBER.findall(text)] for text in (out, printed))
    np.testing.assert_allclose(numbers, expected, atol=0.11)  # a last digit may be rounded otherwise
