"""CSV that a spreadsheet shows, and does not run."""

import csv
import io

import numpy as np
import pytest

from coterie.contract.data import Unreadable
from coterie.errors import DataError
from coterie.tracking.csv_text import csv_text
from coterie.tracking.skipped import check_same_skipped, write_skipped


@pytest.mark.parametrize("text", ["=cmd|calc", "+A1", "-A1", "@SUM(A1)", "\t=1", "-"])
def test_a_formula_is_text(text):
    assert next(csv.reader(io.StringIO(csv_text([(text,)])))) == [f"'{text}"]


def test_a_carriage_return_begins_no_line():
    assert csv_text([("a\r=1",)]) == "a =1\n"


def test_everything_else_is_unchanged():
    row = ("a=b", "", None, -1, -0.1 - 0.2, float("-inf"), "-1", "+2.5e-3", np.float64(-1))
    assert csv_text([row]) == "a=b,,,-1,-0.30000000000000004,-inf,-1,+2.5e-3,-1.0\n"


def test_the_samples_left_out_are_known_again(tmp_path):
    path = tmp_path / "skipped.csv"
    write_skipped(path, [Unreadable('=HYPERLINK("x")', "is empty")])
    assert path.read_text().splitlines()[1].startswith("\"'=")
    check_same_skipped(path, [Unreadable('=HYPERLINK("x")', "is empty")])
    with pytest.raises(DataError, match="other pictures"):
        check_same_skipped(path, [Unreadable("y", "is empty")])
