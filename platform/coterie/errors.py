"""Errors shown to users; each message is one sentence: what, which value, what to do."""

from collections.abc import Collection

_LONGEST = 500
"""Characters of a client's message that are kept."""
_LONGEST_SEEN = 10_000
"""Characters in which the first line of the text is looked for."""

_LISTED = 10
"""Items of a list that a sentence names."""

_OF_NUMBERS = ("invalid literal for int", "Exceeds the limit")
"""Beginnings of Python's words on texts that are no numbers."""
_OF_MEMORY = ("allocate memory", "enough memory", "of memory", "size calculation overflowed")
"""PyTorch's words on memory."""


class CoterieError(Exception):
    """Base of all errors that Coterie raises on purpose.

    Attributes:
        exit_code: Exit code of a command that ends with this error.
        reported: Whether the run's view has already shown the message.
    """

    exit_code = 1
    reported = False


class ConfigError(CoterieError):
    """The configuration was refused before anything started."""

    exit_code = 2


class DataError(CoterieError):
    """The data was refused: missing, unreadable, or unfit for the config."""

    exit_code = 2


class ContractError(CoterieError):
    """A method broke the contract: an undeclared key, a wrong shape, a non-finite value."""


class RunError(CoterieError):
    """The run cannot continue: too few clients, no actors left, or a client failed under `fail`."""


class StateLostError(RunError):
    """Clients' states or peer messages are lost with a node."""

    def __init__(self, *clients: int) -> None:
        super().__init__(*clients)
        self.clients = clients

    def __str__(self) -> str:
        names = listed(self.clients)
        return f"The state of clients {names} is lost with its node; resume from a checkpoint."


def described(error: BaseException) -> str:
    """Return the first line of an error's text, printable and short, even if `str` fails on it.

    Empty if it has no text or cannot make one.
    """
    try:
        text = str(error)[:_LONGEST_SEEN].strip()
    except BaseException:  # noqa: BLE001 - the text of a client's error is the client's code
        text = ""
    return printable(text.splitlines()[0] if text else "")


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is exhausted, in Python or in PyTorch."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_MEMORY)
    )


def reason(error: BaseException) -> str:
    """Return why something failed, to stand within a sentence: the error's text, or its type."""
    return described(error).rstrip(".") or type(error).__name__


def damage(error: BaseException) -> str:
    """Return what is wrong with a file, in a few words, from the error that its content raised.

    Python's words on values of a wrong type speak of code, not of the file.
    """
    if isinstance(error, KeyError):
        return f"it lacks {described(error)}" if error.args else "a part is missing"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, ValueError) and str(error).startswith(_OF_NUMBERS):
        return "it holds what Coterie does not write"
    of_code = (TypeError, AttributeError, IndexError, NameError, AssertionError, RecursionError)
    return "it holds what Coterie does not write" if isinstance(error, of_code) else reason(error)


def listed(items: Collection[object]) -> str:
    """Return the items with commas; of many the first ten, and the number of the others."""
    names = [str(item) for item in items]
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def on_one_line(text: str) -> str:
    """Return text without line breaks, so that a name in it cannot pass for another line."""
    return " ".join(text.splitlines())


def printable(text: str) -> str:
    """Return at most 500 characters, without control characters, escapes and surrogates."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:_LONGEST])
    return shown if len(text) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


class InterruptedRunError(CoterieError):
    """The user or the system asked the run to stop."""

    exit_code = 130
