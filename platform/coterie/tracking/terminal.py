"""The standard output, for commands whose reader may leave before they end."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


class Terminal(Console):
    """A console that shows text as it is: names in data and files may look like markup.

    It says nothing more once nobody reads it (`| head`). Rich would end the process. A run is worth
    more than its lines, and its folder keeps them; a command that only prints has told its reader
    what that one wanted.

    Args:
        options: As for Rich's console.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render without what a terminal would obey, such as escape codes in a label."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=_shown(segment.text))

    def on_broken_pipe(self) -> None:
        """Drop what follows, also from other writers to the same stream."""
        self.quiet = True
        with suppress(AttributeError, OSError, ValueError):  # not every stream has a number
            stream = self.file.fileno()
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), stream)


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
