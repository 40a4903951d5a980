"""The live panel in a notebook: one output that is replaced, without widgets."""

import io
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rich.console import Console, RenderableType

_PAUSE_S = 0.25
_CODE = '<pre style="line-height:1.25;font-family:Menlo,Consolas,monospace">{code}</pre>'


class NotebookPanel:
    """Display of what `get_renderable` returns below a notebook's cell, like rich's `Live`.

    rich's own needs ipywidgets in a notebook, and a thread, which a busy kernel starves; this one
    is drawn when `refresh` is called.
    """

    def __init__(
        self,
        get_renderable: Callable[[], RenderableType],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._get, self._clock = get_renderable, clock
        self._handle: Any = None
        self._drawn = float("-inf")

    def start(self) -> None:
        """Show the panel."""
        self._handle = _ipython().display(self._content(), display_id=True)

    def refresh(self) -> None:
        """Draw the panel again, at most four times a second."""
        if self._handle is not None and self._clock() - self._drawn >= _PAUSE_S:
            self._handle.update(self._content())

    def stop(self) -> None:
        """Remove the panel."""
        if self._handle is not None:
            self._handle.update(_ipython().HTML(""))
            self._handle = None

    def _content(self) -> Any:
        self._drawn = self._clock()
        page = Console(file=io.StringIO(), record=True, width=80, force_jupyter=False)
        page.print(self._get())
        return _ipython().HTML(page.export_html(inline_styles=True, code_format=_CODE))


def _ipython() -> Any:
    """Return IPython's display, which every notebook has."""
    return import_module("IPython.display")
