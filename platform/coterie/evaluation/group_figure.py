"""The figure of the clients' groups over the rounds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from coterie.evaluation.canvas import COLOURS, blank, drawing, save

_ABSENT = "#ffffff"
_MOST = 12
"""Groups named in the legend."""


@drawing()
def group_figure(
    history: Mapping[int, Sequence[int]],
    truth: NDArray[np.int64] | None,
    path: Path,
    about: str = "",
) -> Path:
    """Draw each client's group as a colour over the rounds, as in CP-CFL, figure 5.

    Absent clients are white. If the true groups are known, clients are sorted by them, with lines
    between the groups.

    Args:
        history: Round to each client's group, −1 for absent clients; at least one round.
        truth: Each client's true group.
        path: The PNG to write; folders are made as needed.
        about: What was run, for the line below the figure.
    """
    rounds, table = list(history), np.array(list(history.values())).T
    clients, groups = len(table), int(table.max()) + 1
    order = np.arange(clients) if truth is None else np.argsort(truth, kind="stable")
    colours = [_ABSENT, *(COLOURS[group % len(COLOURS)] for group in range(groups))]
    figure = blank(float(np.clip(3 + 0.08 * len(rounds), 5, 14)), _height(clients))
    axes = figure.add_subplot()
    edges = (rounds[0] - 0.5, rounds[-1] + 0.5, clients - 0.5, -0.5)
    axes.imshow(
        _by_round(rounds, table)[order],
        cmap=ListedColormap(colours),
        norm=BoundaryNorm(np.arange(-1.5, groups + 0.5), groups + 1),
        aspect="auto",
        interpolation="nearest",
        extent=edges,
    )
    if truth is not None:
        for cut in np.flatnonzero(np.diff(truth[order])):
            axes.axhline(cut + 0.5, color="black", linewidth=1.2)
    if clients <= 30:
        axes.set_yticks(range(clients), [str(client) for client in order])
    axes.set(xlabel="round", ylabel="client" if truth is None else "client, by true group")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    named = [Patch(color=colours[group + 1], label=str(group)) for group in range(groups)][:_MOST]
    axes.legend(
        handles=named, title="group", loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False
    )
    return save(figure, path, about)


def _height(clients: int) -> float:
    return float(np.clip(1.2 + 0.09 * clients, 2.8, 12))


def _by_round(rounds: Sequence[int], table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a column per round from first to last; −1 for rounds without participants."""
    every = np.full((len(table), rounds[-1] - rounds[0] + 1), -1)
    every[:, np.array(rounds) - rounds[0]] = table
    return every
