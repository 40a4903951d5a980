"""Whose this process is: one that a command has to itself ends with the command.

A program or notebook that uses Coterie goes on afterwards, so there nothing may be cut short.
"""

import threading

_has_command = threading.Event()


def give_to_command() -> None:
    """Say that the process ends as soon as its one command has."""
    _has_command.set()


def ends_with_command() -> bool:
    """Whether the process was given to a command."""
    return _has_command.is_set()
