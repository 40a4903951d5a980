"""The error that ends a run, for whatever its code raised."""

from coterie.config.component import target_of
from coterie.config.schema import RunConfig
from coterie.errors import CoterieError, DataError, RunError, described, reason

_MISFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that a method raises on a state of another kind than its own."""
_OURS = "coterie."


def ending(error: BaseException, config: RunConfig, *, trained: bool) -> BaseException:
    """Return the error to end a run with.

    Code that calls `sys.exit(0)` has not completed the run. What a method of Coterie's raises on a
    resumed state, before any client had a task, is due to the checkpoint, which anybody may have
    sealed.

    Args:
        error: What was raised.
        config: The run's config.
        trained: Whether a client has completed a task in this process.
    """
    if isinstance(error, SystemExit | GeneratorExit):
        return RunError(
            f"Code of the run raised {type(error).__name__} ({described(error) or 'no message'}); "
            "remove the exit, and go on with resume=true."
        )
    known = isinstance(error, CoterieError) or not isinstance(error, _MISFIT)
    if known or trained or not config.resume or not target_of(config.method).startswith(_OURS):
        return error
    return DataError(
        f"run_dir={config.run_dir}: its checkpoint does not fit {target_of(config.method)} "
        f"({type(error).__name__}: {reason(error)}); restore it from a backup, or start afresh in "
        "a new run_dir."
    )
