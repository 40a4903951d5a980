"""What all figures share: palette, markers, an empty figure, and how one is written."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#92dadd",
)
"""Petroff's ten colours (2021, arXiv 2107.02270), told apart under colour blindness too."""

MARKERS = "o^sDvP"


def style(number: int) -> tuple[str, str]:
    """Colour and marker of a group: ten colours with one marker, then the next marker."""
    return COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]


def blank(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, without pyplot: no display and no global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG at 200 dots an inch, make folders as needed, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=200)
    return path
