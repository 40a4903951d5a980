"""A stream that is closed, full, narrow, missing or of no width ends nothing."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from coterie.tracking.console import ConsoleView
from coterie.tracking.streams import Outlasting
from coterie.tracking.terminal import Terminal

LINES = "é ✓ \udcff\n" * 3000
"""More than a buffer holds, with what ASCII and UTF-8 lack."""


def full():
    return Path("/dev/full").open("w", encoding="utf-8")


def unread():
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", encoding="utf-8")


def closed():
    stream = io.TextIOWrapper(io.BytesIO())
    stream.close()
    return stream


def hung_up():
    ours, theirs = pty.openpty()
    os.close(ours)
    return os.fdopen(theirs, "w", encoding="utf-8")


@pytest.mark.parametrize("kind", [full, unread, closed, hung_up])
def test_output_that_nobody_takes_is_dropped(kind):
    stream = kind()
    terminal = Terminal(file=stream)
    for _ in range(2):
        terminal.print(LINES)
        terminal.out("out")
    if not stream.closed:
        stream.write("of another writer")
        stream.close()


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", "? ? ?"), ("latin-1", "é ? ?"), ("utf-8", "é ✓ ?")]
)
def test_what_an_encoding_lacks_is_replaced(encoding, shown):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    Outlasting(stream).write("é ✓ \udcff")
    assert raw.getvalue().decode(encoding) == shown


def test_a_table_is_drawn_in_the_signs_that_the_encoding_has():
    table = Table("a")
    table.add_row("1")
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    Terminal(file=stream).print(table)
    assert b"1" in raw.getvalue()
    assert b"?" not in raw.getvalue()


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_missing_stream_is_none_to_write_to(monkeypatch, name):
    monkeypatch.setattr(sys, name, None)
    Terminal(stderr=name == "stderr").print("unheard")


@pytest.mark.parametrize("columns", ["0", "1", "7"])
def test_a_terminal_without_a_width_has_the_usual_one(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    terminal = Terminal(file=io.StringIO(), force_terminal=True)
    assert terminal.width == 80
    view = ConsoleView("live", terminal)
    view.start("a run", {"seed": "1"})
    view.finish("completed")


OPENING = """
from coterie.tracking.streams import open_missing
open_missing()
import os, sys
number = os.open("/dev/null", os.O_RDONLY)
print("a", file=sys.stdout)
print("b", file=sys.stderr)
sys.exit(number if number > 2 and sys.stdin.read() == "" else 1)
"""


@pytest.mark.parametrize("closing", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_a_closed_stream(closing):
    command = f'exec "$0" -c "$1" {closing}'
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, OPENING],
        env=own,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode > 2
    assert b"Exception" not in done.stderr
