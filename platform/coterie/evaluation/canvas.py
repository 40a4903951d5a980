r"""The common style of all figures: drawing context, palette, markers, ticks, and files.

A figure looks the same whatever the user's matplotlibrc or notebook says, and text is drawn as it
is: `$`, `_`, `^` and `\` in the name of a class are not mathematics.
"""

import functools
import io
import logging
import os
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import InterruptedRunError, printable, reason
from coterie.tracking.atomic import replacing

_BACKEND = "MPLBACKEND"
_given = os.environ.pop(_BACKEND, None)  # one that this matplotlib lacks would end the import
import matplotlib as mpl  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.font_manager import fontManager  # noqa: E402

if _given is not None:
    os.environ[_BACKEND] = _given
    with suppress(ValueError):
        mpl.rcParams["backend"] = _given

__all__ = [
    "COLOURS",
    "MARKERS",
    "Axes",
    "Drawing",
    "Figure",
    "blank",
    "drawing",
    "guarded",
    "label",
    "save",
    "style",
    "tick_step",
    "ticks",
    "widest",
    "write_counts",
]

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
NAME = 32
"""Characters of a name in a figure."""

_KEPT = ("backend", "interactive", "toolbar", "timezone", "keymap.", "webagg.", "docstring.")
"""Settings of the user that stay, since they are about windows."""
_FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans", "Arial Unicode MS")
"""Fonts by preference; matplotlib has the first, and the others supply missing characters."""
_STEPS = (1, 2, 5)

_logger = logging.getLogger(__name__)
_lock = threading.RLock()  # matplotlib's settings are global


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with matplotlib's own settings, and restore the user's afterwards."""
    with _lock, mpl.rc_context(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        defaults = mpl.rcParamsDefault
        mpl.rcParams.update({k: defaults[k] for k in defaults if not k.startswith(_KEPT)})
        there = set(fontManager.get_font_names())
        mpl.rcParams["font.family"] = [name for name in _FONTS if name in there] or ["sans-serif"]
        mpl.rcParams["text.parse_math"] = False
        yield
    if any("missing from font" in str(warning.message) for warning in told):
        _tell_of_glyphs()


@contextmanager
def guarded(path: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Continue if a figure cannot be drawn: say so in a sentence, and delete an incomplete file."""
    try:
        yield
    except InterruptedRunError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, a figure ends no run
        try:
            path.unlink(missing_ok=True)
        except OSError:
            _logger.debug("%s: it cannot be deleted", path)
        tell(f"{path}: the figure could not be drawn ({reason(error)}); all else goes on.")


@functools.cache
def _tell_of_glyphs() -> None:
    _logger.warning(
        "Some characters of names are in no installed font, and figures show boxes for them; "
        "install one that has them, such as Noto Sans CJK."
    )


def style(number: int) -> tuple[str, str]:
    """Return a group's colour and marker: ten colours with one marker, then with the next."""
    return COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]


def label(name: object) -> str:
    """Return a name as figures show it: one line, printable, and not too long."""
    text = printable(str(name))
    return text if len(text) <= NAME else f"{text[: NAME - 1]}…"


def widest(names: Sequence[object]) -> float:
    """Return by how many inches the longest label of names exceeds ten characters."""
    return 0.075 * max(0, *(len(label(name)) - 10 for name in names), 0)


def ticks(names: Sequence[object], most: int) -> tuple[list[int], list[str]]:
    """Return places and labels of at most `most` ticks, a round step apart."""
    step = tick_step(len(names), most)
    places = list(range(0, len(names), step))
    return places, [label(names[place]) for place in places]


def tick_step(count: int, most: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, … that leaves at most `most` ticks."""
    size = 1
    while True:
        for step in _STEPS:
            if count <= step * size * most:
                return step * size
        size *= 10


def write_counts(
    axes: Axes,
    counts: NDArray[np.int64],
    dark: NDArray[np.bool_],
    size: float = 8,
    text: Callable[[int], str] = str,
) -> None:
    """Write the counts that are not 0 into their cells (rows, columns), in white on dark cells."""
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if dark[row, column] else "black"
            shown = text(int(count))
            axes.text(column, row, shown, ha="center", va="center", size=size, color=colour)


class Drawing(Figure):
    """A figure that notebooks show without pyplot."""

    @drawing()
    def savefig(self, *args: Any, **kwargs: Any) -> None:
        """Write the figure with the settings that it was drawn with."""
        super().savefig(*args, **kwargs)

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=110)
        return content.getvalue()


def blank(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, without pyplot.

    No display and no global state.
    """
    figure = Drawing(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path, about: str = "", dpi: int = 200) -> Path:
    """Write the figure as PNG, and return the path; folders are made as needed.

    `about` says what was run: it stands below the figure, and in the file as its description.
    """
    about = printable(about)
    if about:
        lines = textwrap.fill(about, int(13 * figure.get_figwidth()))
        figure.supxlabel(lines, x=0.01, ha="left", fontsize=8, color="#666666")
    described = {"Description": about} if about else None
    with replacing(path) as temporary:  # what stands there may have other names, or be a link
        figure.savefig(temporary, format="png", dpi=dpi, metadata=described)
    return path
