"""The error that ends a run, chosen by the exception that was raised."""

from traceback import walk_tb

from coterie.config.component import target_of
from coterie.config.schema import RunConfig
from coterie.errors import CoterieError, DataError, RunError, described, reason

_MISFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that a method raises on a state of another kind than its own."""
_LIBRARIES = "site-packages"


def ending(error: BaseException, config: RunConfig, *, trained: bool) -> BaseException:
    """Return the error to end a run with.

    Code that calls `sys.exit(0)` has not completed the run. What Coterie's own code raises on a
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
    if trained or not config.resume:
        return error
    return misfit(error, f"run_dir={config.run_dir}", config)


def misfit(error: BaseException, place: str, config: RunConfig) -> BaseException:
    """Return a DataError if a checkpoint does not fit the run's method, else the error itself.

    Args:
        error: What was raised while nothing but the checkpoint's state was used.
        place: The key and the run's folder, such as "run=runs/mine".
        config: The run's config.
    """
    known = isinstance(error, CoterieError) or not isinstance(error, _MISFIT)
    if known or _of_the_user(error):
        return error
    return DataError(
        f"{place}: its checkpoint does not fit {target_of(config.method)} "
        f"({type(error).__name__}: {reason(error)}); restore it from a backup, or train in a new "
        "run_dir."
    )


def _of_the_user(error: BaseException) -> bool:
    """Return whether an error was raised by the user's code, maybe within a library."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    own = [frame for frame in frames if _LIBRARIES not in frame.f_code.co_filename]
    return bool(own) and not own[-1].f_globals.get("__name__", "").startswith("coterie.")
