"""The standard output, for commands whose reader may leave before they end."""

import os
from contextlib import suppress
from pathlib import Path

from rich.console import Console


class Terminal(Console):
    """A console that says nothing more once nobody reads it (`| head`).

    Rich would end the process. A run is worth more than its lines, and its folder keeps them; a
    command that only prints has told its reader what that one wanted.
    """

    def on_broken_pipe(self) -> None:
        """Drop what follows, also from other writers to the same stream."""
        self.quiet = True
        with suppress(AttributeError, OSError, ValueError):  # not every stream has a number
            stream = self.file.fileno()
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), stream)
