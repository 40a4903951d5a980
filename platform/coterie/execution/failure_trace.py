"""The traceback of a client's failed task, as a text for the driver."""

import traceback

from coterie.errors import described, printable

_FRAMES, _CAUSES = 20, 4
"""How many calls of an error, and how many errors of a chain, are kept: the last ones."""
_LONGEST = 10_000


def trace_of(error: BaseException, *, private: bool) -> str:
    """Return the traceback of a task's error, in printable lines of at most 10,000 characters.

    Args:
        error: What ended the task.
        private: Whether the client's samples are kept from the server. Texts of errors may hold
            values of samples, so only the error's type and the place in the code are given then.
    """
    if private:
        last = traceback.extract_tb(error.__traceback__, limit=-1)
        places = [f'  File "{at.filename}", line {at.lineno}, in {at.name}' for at in last]
        return "\n".join([*places, type(error).__name__])
    parts: list[str] = []
    found: BaseException | None = error
    while found is not None and len(parts) < _CAUSES:
        frames = traceback.format_tb(found.__traceback__, limit=-_FRAMES)
        lines = ["Traceback (most recent call last):", *"".join(frames).splitlines()]
        kind, text = type(found).__name__, described(found)
        lines.append(f"{kind}: {text}" if text else kind)
        parts.insert(0, "\n".join(printable(line.expandtabs()) for line in lines))
        hidden = found.__cause__ is None and found.__suppress_context__
        found = None if hidden else found.__cause__ or found.__context__
    return "\n\n".join(parts)[-_LONGEST:]
