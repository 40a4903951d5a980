"""The logger of a user's module during validation on the server: one of the run's loggers."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger

_LEFT_TO_THE_RUN = (
    "log_metrics",
    "log_hyperparams",
    "log_graph",
    "after_save_checkpoint",
    "save",
    "finalize",
)


class OfRun:
    """A logger of the run, to which a module gives pictures and texts.

    It passes for an object of the logger's own class. Numbers are left to the run, which tracks
    them under names of its own.
    """

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    @property  # type: ignore[misc]  # what isinstance asks
    def __class__(self) -> type:
        """The logger's class."""
        return type(self._logger)

    def __getattr__(self, name: str) -> Any:
        return _leave_out if name in _LEFT_TO_THE_RUN else getattr(self._logger, name)


def for_module(loggers: Sequence[Logger]) -> Any:
    """Return the first of these loggers that takes more than numbers; None if there is none."""
    found = [OfRun(each) for each in loggers if not isinstance(each, CSVLogger)]
    return found[0] if found else None


def _leave_out(*args: Any, **kwargs: Any) -> None:
    """Ignore a call that the run makes itself."""
