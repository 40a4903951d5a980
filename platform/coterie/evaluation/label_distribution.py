"""The distribution of classes over clients: counts, a table for terminals, a figure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from coterie.contract.data import DataArrays, Indices
from coterie.evaluation.canvas import blank, drawing, label, save, tick_step, ticks, write_counts
from coterie.tracking.formatting import shorten

Counts = NDArray[np.int64]
_WIDTH = 80
_MAX_ROWS = 20
_NAME = 16
"""Width of a client's name."""
_ABREAST = 30
"""Characters up to which clients' names are written side by side below the figure."""
_Row = tuple[str, NDArray[np.float64]]
"""A row's label and its counts."""
_ENDS = 8
"""Clients at each end of the table if there are more than `_MAX_ROWS`."""


def classes_held(counts: NDArray[np.int64]) -> dict[str, float]:
    """Return the mean number of a client's "classes", and of "classes_1%" with a hundredth of all.

    Orchestra (Lubana et al., 2022), table 4. "imbalance" is how many times as large as the smallest
    of these classes the largest one is, the imbalance ratio of CCFC's (Yan et al.) table 3.

    Args:
        counts: Each client's samples of each class (clients, classes).
    """
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    held = {"classes": counts > 0, "classes_1%": shares >= 0.01}
    smallest = np.where(counts > 0, counts, counts.max()).min(axis=1)
    ratio = float((counts.max(axis=1) / smallest.clip(min=1)).mean())
    return {
        **{name: float(found.sum(axis=1).mean()) for name, found in held.items()},
        "imbalance": ratio,
    }


def class_spread(data: DataArrays, parts: Sequence[Indices]) -> tuple[Counts, tuple[str, ...]]:
    """Count each client's samples of each class (clients, classes), and name the classes.

    Samples of unknown class, if there are any, are counted as a last class "unlabelled".

    Args:
        data: The training data.
        parts: Each client's row numbers.
    """
    labels, names = data.labels, data.classes
    if labels is None:
        labels = np.full(len(data.samples), -1, dtype=np.int64)
    if (labels < 0).any():
        labels, names = np.where(labels < 0, len(names), labels), (*names, "unlabelled")
    clients, classes = len(parts), len(names)
    client = np.repeat(np.arange(clients), [len(part) for part in parts])
    cells = client * classes + labels[np.concatenate(parts)]
    counts = np.bincount(cells, minlength=clients * classes)
    return counts.reshape(clients, classes).astype(np.int64), names


def client_names(data: DataArrays, parts: Sequence[Indices]) -> tuple[str, ...]:
    """Return the clients' names if the parts are the data's own clients, else no names."""
    if data.owners is None:
        return ()
    owners = [np.unique(data.owners[part]).tolist() for part in parts]
    if not all(owners) or sum(map(len, owners)) > len(set().union(*owners)):
        return ()
    return tuple(" + ".join(data.owner_names[owner] for owner in own) for own in owners)


@dataclass(frozen=True)
class ClassTable:
    """A table of the clients' samples per class, as wide as the terminal, 80 columns at most.

    With more than 20 clients, one row has the means of those in the middle. With more classes than
    fit, each row names the client's largest classes instead.

    Classes and clients without names have their numbers.
    """

    counts: Counts
    class_names: Sequence[str] = ()
    client_names: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """Yield the table of the terminal's width."""
        width, counts = min(_WIDTH, options.max_width), self.counts
        numbers = list(map(str, range(counts.shape[1])))
        names = [label(name) for name in self.class_names] or numbers
        rows = _rows(counts, self.client_names)
        room = (width - _lead_width(rows) + 1) // len(names) - 1
        if room < max(len(_short(count)) for _, row in rows for count in row):
            yield _largest_classes_table(counts, rows, names, width)
            return
        headers = [name if len(name) <= room else f"{name[: room - 1]}…" for name in names]
        table = _empty_table(counts)
        for header in headers if len(set(headers)) == len(headers) else numbers:
            table.add_column(Text(header), justify="right", no_wrap=True)
        for lead, row in rows:
            table.add_row(Text(lead), _short(row.sum()), *(_short(count) for count in row))
        yield table


def _largest_classes_table(counts: Counts, rows: list[_Row], names: list[str], width: int) -> Table:
    table = _empty_table(counts)
    table.add_column("classes", justify="right", no_wrap=True)
    room = width - _lead_width(rows) - len("classes ")
    table.add_column("largest classes", no_wrap=True, overflow="ellipsis", max_width=max(1, room))
    for lead, row in rows:
        order = np.argsort(-row, kind="stable")[:4]
        largest = ", ".join(f"{names[k]}: {_short(row[k])}" for k in order if row[k] > 0)
        counted = str(np.count_nonzero(row))
        table.add_row(Text(lead), _short(row.sum()), counted, Text(largest))
    return table


def _lead_width(rows: list[_Row]) -> int:
    """Return the width of the columns "client" and "samples", with a space after each."""
    leads = ("client", *(lead for lead, _ in rows))
    return max(map(len, leads)) + 1 + len("samples ")


def _empty_table(counts: Counts) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.caption = f"{len(counts)} clients, {int(counts.sum()):,} samples"
    table.min_width = len(table.caption)
    table.caption_justify = "left"
    table.add_column("client", justify="right", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    return table


def _rows(counts: Counts, names: Sequence[str]) -> list[_Row]:
    """Return the table's rows; if there are many clients, one mean replaces the middle ones."""

    def one(client: int) -> _Row:
        name = shorten(label(names[client]), _NAME) if names else str(client)
        return name, counts[client].astype(np.float64)

    clients = range(len(counts))
    if len(clients) <= _MAX_ROWS:
        return [one(client) for client in clients]
    middle = counts[_ENDS:-_ENDS]
    mean = f"mean of {len(middle)}", middle.mean(axis=0)
    first, last = clients[:_ENDS], clients[-_ENDS:]
    return [*(one(client) for client in first), mean, *(one(client) for client in last)]


def _short(count: float) -> str:
    """Return a count in at most five characters up to 9,999,999; a dot for zero."""
    if count == 0:
        return "·"
    if count < 10 and count != int(count):
        return f"{count:.1f}"
    return f"{count:.0f}" if count < 99_999.5 else f"{count / 1000:.0f}k"


@drawing()
def label_distribution_figure(
    counts: Counts,
    class_names: Sequence[str],
    path: Path,
    client_names: Sequence[str] = (),
    about: str = "",
) -> None:
    """Save a heat map of clients (across) and classes (down) as a PNG."""
    clients, classes = counts.shape
    people = [shorten(label(name), _NAME) for name in client_names]
    names = list(class_names) or list(map(str, range(classes)))
    width = float(np.clip(2.6 + 0.4 * clients, 5.0, 12.0))
    longest = max(map(len, people), default=0)
    upright = clients > 4 or clients * longest > _ABREAST
    height = float(np.clip(1.2 + 0.3 * classes, 2.8, 12.0)) + 0.08 * longest * upright
    figure = blank(width, height)
    axes = figure.add_subplot()
    cells = counts.T
    image = axes.imshow(cells, cmap="Blues", vmin=0, aspect="auto", interpolation="nearest")
    axes.set_title("Samples of each class on each client", fontsize=11)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.set_xticks(range(0, clients, tick_step(clients, 30)), ticks(people, 30)[1] or None)
    if people:
        axes.tick_params(axis="x", rotation=90 if upright else 0)
    axes.set_yticks(*ticks(names, 40))
    if clients <= 20 and classes <= 20:
        write_counts(axes, cells, cells > counts.max(initial=0) / 2, size=7, text=_short)
    figure.colorbar(image, ax=axes, label="samples")
    save(figure, path, about, dpi=150)
