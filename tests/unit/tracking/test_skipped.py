"""`skipped.csv` of a stranger's run is read, or refused in a sentence."""

import pytest

from coterie.errors import DataError
from coterie.tracking.skipped import check_same_skipped


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b'file,reason\n"' + b"x" * 200_000 + b'",b\n', b"a,\xe4\n"],
)
def test_what_no_run_writes_is_refused_in_a_sentence(tmp_path, content):
    path = tmp_path / "skipped.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"it is damaged .*; restore it, or begin") as caught:
        check_same_skipped(path, ())
    assert "\n" not in str(caught.value)


def test_empty_lines_are_no_samples(tmp_path):
    path = tmp_path / "skipped.csv"
    path.write_bytes(b"file,reason\n\n\n")
    check_same_skipped(path, ())
