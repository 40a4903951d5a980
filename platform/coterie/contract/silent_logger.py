"""The logger of a user's module on a client, which keeps nothing."""

from typing import Any

from lightning.pytorch.loggers import Logger


class SilentLogger(Logger):
    """A logger that accepts everything that a module logs, and discards it.

    What a client draws would leave it; `self.log` is how numbers do.

    Attributes:
        used: Whether the module has given it pictures, texts or anything else but numbers. That
            `experiment` is read does not count: the Trainer reads it to start trackers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    @property
    def name(self) -> str:
        """The name that Lightning requires of a logger."""
        return "none"

    @property
    def version(self) -> int:
        """The version that Lightning requires of a logger."""
        return 0

    @property
    def experiment(self) -> "_Nothing":
        """A stand-in for TensorBoard's writer or W&B's run."""
        return _Nothing(self)

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Discard the metrics; the run takes them from the Trainer."""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Discard the hyperparameters; the run's config has them."""

    def __getattr__(self, name: str) -> Any:
        """Accept any other method of a logger, such as `log_image`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return _Nothing(self)


class _Nothing:
    """Stand-in that accepts any call, and marks its logger as used."""

    def __init__(self, logger: SilentLogger) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(self._logger)

    def __call__(self, *args: Any, **kwargs: Any) -> "_Nothing":
        self._logger.used = True
        return self

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *args: object) -> None:
        """Leave the context."""

    def __getitem__(self, key: Any) -> "_Nothing":
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        """Discard the value."""
