"""A console for commands whose reader may close the stream before they end."""

from collections.abc import Iterable
from typing import IO, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from coterie.tracking.streams import Outlasting

_NARROWEST = 20
"""Fewest columns that are not a mistake, such as COLUMNS=0 of a terminal without a size."""
_USUAL = 80


class Terminal(Console):
    """A console that shows text literally, since names in data and files may look like markup.

    Whatever becomes of its stream, it does not fail (`Outlasting`).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)
        if self._width is not None and self._width < _NARROWEST:
            self._width = _USUAL

    @property
    def file(self) -> IO[str]:
        """The stream, which never fails."""
        return cast("IO[str]", Outlasting(cast("TextIO", super().file)))

    @file.setter
    def file(self, file: IO[str]) -> None:
        """Set the stream."""
        self._file = file

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render without what a terminal would interpret, such as escape codes in a label."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=_shown(segment.text))


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
