"""What all figures share: palette, markers, an empty figure, and how one is written."""

import io
import textwrap
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


class Drawing(Figure):
    """A figure that notebooks show without pyplot."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=110)
        return content.getvalue()


def blank(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, without pyplot: no display and no global state."""
    figure = Drawing(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path, about: str = "", dpi: int = 200) -> Path:
    """Write the figure as PNG, make folders as needed, and return the path.

    Args:
        figure: The figure.
        path: The file.
        about: What was run; it stands below the figure, and in the file as its description.
        dpi: Dots an inch.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if about:
        lines = textwrap.fill(about, int(13 * figure.get_figwidth()))
        figure.supxlabel(lines, x=0.01, ha="left", fontsize=8, color="#666666")
    figure.savefig(path, format="png", dpi=dpi, metadata={"Description": about} if about else None)
    return path
