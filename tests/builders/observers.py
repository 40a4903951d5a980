"""Observers of a run that only remember."""

from collections.abc import Callable
from typing import Any


class Silent:
    """An observer that only remembers notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None

    def note(self, text: str) -> None:
        self.notes.append(text)


class Quiet:
    """An observer that remembers the names and arguments of its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.calls.append((name, *args))
