"""Check a data set before it is used: `coterie check_data data=CHOICE data.path=DIR`."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import filterfalse
from typing import TYPE_CHECKING

from rich.table import Table

from coterie.commands.data_choice import build_data, separate_data
from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.config.component import Component, NotEmpty
from coterie.config.loading import load_component
from coterie.config.schema import RunConfig
from coterie.errors import printable
from coterie.tracking.paths import local_path, make_writable
from coterie.tracking.terminal import Terminal

if TYPE_CHECKING:
    from coterie.datamodules.checking import Findings, Report

_ABOUT = (
    "Looks at every sample of a data set once and keeps none: how many there are, of which sizes, "
    "modes, classes and clients, what cannot be read and why (unreadable.csv), what occurs twice "
    "(duplicates.csv), and what some of it looks like (contact_sheet.png). It passes "
    "over train's other keys, such as partition=by_client."
)
_USAGE = (
    "usage: coterie check_data data=CHOICE [data.KEY=VALUE ...] [out=DIR]\n"
    "       (coterie train --help data=CHOICE lists its keys)"
)
_SHOWN = 8


class CheckConfig(Component):
    """Where the lists are written."""

    out: NotEmpty = "check"
    """The folder of the lists and the contact sheet."""


@command(
    _ABOUT,
    _USAGE,
    CheckConfig,
    {
        "0": "all can be read",
        "1": "something cannot be read",
        "2": "the arguments or the data were refused",
    },
)
def main(arguments: Sequence[str]) -> int:
    """Check the data set that the arguments name."""
    config, values = separate_data(list(filterfalse(_is_of_another_part, arguments)))
    out = local_path("out", load_component(CheckConfig, values).out)
    from coterie.datamodules.checking import check_data

    data = build_data(config)
    make_writable("out", out)
    report = check_data(data, out)
    console = Terminal(soft_wrap=True, highlight=False)
    for half, findings in report.halves.items():
        console.print(_table(half, findings))
    for sentence in _sentences(report):
        console.print(sentence)
    if not report.bad and hasattr(config, "feature_ranges"):
        from coterie.run.doubts import unlike_columns

        with _unheard():
            arrays = data.arrays()
        for sentence in unlike_columns(arrays, config) if arrays.samples.ndim == 2 else ():
            console.print(sentence)
    return 1 if report.bad else 0


@contextmanager
def _unheard() -> Iterator[None]:
    """Silence warnings about the data within the context; its first reading has shown them."""
    logger = logging.getLogger("coterie.datamodules")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _is_of_another_part(argument: str) -> bool:
    """Return whether an argument belongs to a section of a run's config other than `data`."""
    part = argument.partition("=")[0].lstrip("~").partition(".")[0]
    return part != "data" and part in RunConfig.model_fields


def _table(half: str, findings: "Findings") -> Table:
    table = Table("", "", title=half, show_header=False)
    table.add_row("samples", f"{findings.samples:,}")
    vectors = findings.modes.keys() == {"vector"}
    for title, counts in (
        ("number of features" if vectors else "size", findings.sizes),
        ("mode", Counter() if vectors else findings.modes),
        ("class", findings.classes),
        ("client", findings.clients),
    ):
        if counts:
            table.add_row(*(_plural(title, counts), _listed(counts)))
    if findings.unlabelled:
        table.add_row("without label", f"{findings.unlabelled:,}")
    oblong, dark = findings.tally.reshaped, findings.tally.dark
    if oblong:
        table.add_row("other shape", f"{oblong:,}: choose data.fit, or data.size=[HEIGHT,WIDTH]")
    if dark:
        table.add_row("dark", f"{dark:,} of 16 bits use 12: data.levels={findings.tally.lighter}")
    if findings.tally.turned:
        table.add_row("turned", f"{findings.tally.turned:,} were turned by their EXIF orientation")
    if findings.tally.grounds:
        table.add_row("transparent", f"on {_listed(findings.tally.grounds)}: see data.background")
    if findings.tally.plain:
        table.add_row("of one colour", f"{findings.tally.plain:,}: see data.background, levels")
    if findings.bad:
        table.add_row("cannot be read", f"{len(findings.bad):,}")
    return table


def _plural(title: str, counts: Counter[str]) -> str:
    if len(counts) == 1:
        return title
    return f"{len(counts):,} {title}{'es' if title.endswith('s') else 's'}"


def _listed(counts: Counter[str]) -> str:
    shown = [f"{name}: {count:,}" for name, count in counts.most_common(_SHOWN)]
    more = [f"and {len(counts) - _SHOWN:,} more"] if len(counts) > _SHOWN else []
    return ", ".join(shown + more)


def _sentences(report: "Report") -> list[str]:
    bad = [one for half in report.halves.values() for one in half.bad]
    found = [printable(f"{one.name}: {one.reason}") for one in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        found.append(f"and {len(bad) - _SHOWN:,} more that cannot be read")
    if report.duplicates:
        across = f", {report.across:,} of them in two classes or halves" if report.across else ""
        found.append(f"{len(report.duplicates):,} samples are there more than once{across}")
    return [*found, *(str(path) for path in report.files)]


if __name__ == "__main__":
    run_program(main)
