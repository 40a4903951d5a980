"""The errors a user can meet; each message is one sentence: what, which value, what to do."""


class CoterieError(Exception):
    """Base of every error that Coterie raises on purpose.

    Attributes:
        exit_code: What the command line exits with when this error ends the run.
        reported: Whether the run's view has shown the sentence already.
    """

    exit_code = 1
    reported = False


class ConfigError(CoterieError):
    """The configuration was refused before anything started."""

    exit_code = 2


class DataError(CoterieError):
    """The data was refused: missing, unreadable, or not fit for what was asked."""

    exit_code = 2


class ContractError(CoterieError):
    """A method broke the contract: an undeclared key, a wrong shape, a value that is not finite."""


class RunError(CoterieError):
    """The run cannot go on: too few clients, no actors left, a client failed under `fail`."""


class StateLostError(RunError):
    """What clients kept, or were sent, is lost with the node that held it.

    Attributes:
        clients: The clients.
    """

    def __init__(self, *clients: int) -> None:
        super().__init__(*clients)
        self.clients = clients

    def __str__(self) -> str:
        """One sentence."""
        names = ", ".join(str(client) for client in self.clients)
        return f"The state of clients {names} is lost with its node; resume from a checkpoint."


class InterruptedRunError(CoterieError):
    """The user or the system asked the run to stop."""

    exit_code = 130
