"""Texts of errors, whatever they are made of."""

import pytest

from coterie.errors import StateLostError, described, listed, printable, reason


class UnprintableError(Exception):
    def __str__(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("  \n one"), "one"),
        (ValueError(), ""),
        (UnprintableError(), ""),
        (ValueError("\x1b[2J\x00a\tb\ud800\u202e ü"), "?[2J?a?b?? ü"),
        (ValueError("x" * 10**7), "x" * 499 + "…"),
        (ValueError("x" * 500), "x" * 500),
        (SystemExit(0), "0"),
    ],
)
def test_an_errors_text_is_one_short_printable_line(error, text):
    assert described(error) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("It is wrong.\nSee below."), "It is wrong"),
        (ValueError(), "ValueError"),
        (ValueError(" \n"), "ValueError"),
        (UnprintableError(), "UnprintableError"),
    ],
)
def test_a_reason_is_never_empty(error, text):
    assert reason(error) == text


def test_what_is_cut_has_500_characters():
    assert len(printable("ab" * 10**6)) == 500


def test_long_lists_are_cut():
    assert listed(range(3)) == "0, 1, 2"
    assert listed(range(10)).endswith("8, 9")
    assert listed(range(2000)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 1,990 more"
    assert "clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more is lost" in str(
        StateLostError(*range(100))
    )
