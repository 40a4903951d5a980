"""Names that come from data and files are shown, and not obeyed."""

import io

import pytest
from rich.table import Table
from rich.text import Text

from coterie.tracking.terminal import Terminal

HOSTILE = "[/b] [red]x :smile: \x1b[2J\x1b]0;title\x07\x9b1m"
SHOWN = "[/b] [red]x :smile: ?[2J?]0;title"


def table(*cells):
    found = Table("", show_header=False)
    found.add_row(*cells)
    return found


@pytest.mark.parametrize("what", [HOSTILE, Text(HOSTILE), table(HOSTILE), table(Text(HOSTILE))])
def test_a_name_is_shown_as_it_is(what):
    file = io.StringIO()
    Terminal(file=file, width=100, highlight=False).print(what)
    assert SHOWN in file.getvalue()
    assert not {"\x1b", "\x07", "\x9b"} & set(file.getvalue())


def test_colours_and_lines_stay():
    file = io.StringIO()
    terminal = Terminal(file=file, force_terminal=True, color_system="standard", width=40)
    terminal.print("a\nb", style="red")
    assert file.getvalue() == "\x1b[31ma\x1b[0m\n\x1b[31mb\x1b[0m\n"
