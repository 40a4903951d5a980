"""CP-CFL's and IFCA's options: the pool of models, who takes which, and when to begin again."""

import logging
import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from coterie.errors import ConfigError
from modules.classification import ClassificationConfig

_logger = logging.getLogger(__name__)


class CPCFLConfig(ClassificationConfig):
    """What CP-CFL and IFCA share."""

    sample_clusters: ClassVar[str | None] = None

    optimizer: Literal["sgd", "adam"] = "adam"
    """SGD or Adam; its state starts afresh in each turn of a client."""
    learning_rate: PositiveFloat = 1e-3
    """The optimiser's learning rate η."""
    rounds: PositiveInt = 100
    """Rounds T, those of exploration included; a restart begins to count anew."""
    epochs: PositiveInt = 3
    """Local epochs a round, E, of the head."""
    batch_size: Annotated[int, Field(ge=2)] = 32
    """Samples a batch."""
    clusters: PositiveInt = 3
    """Models in the pool, N; one is FedAvg, where there is no exploration."""
    explore_rounds: NonNegativeInt
    """Rounds T_c in which clients take models at random and train heads alone."""
    initial: Literal["common", "independent"]
    """`common`: N random heads on one encoder (CP-CFL); `independent`: N random models (IFCA)."""
    encoder_epochs: NonNegativeInt | None = None
    """Of a client's epochs, the first so many train the encoder too, after which it is frozen; by
    default all. 0 freezes it in all rounds."""
    shared_encoder: bool = False
    """Whether all models have one encoder, averaged over all clients, and only heads of their own;
    needs initial=common."""
    choice: Literal["loss", "client"] = "loss"
    """`loss`: a client takes the model with the least loss; `client`: client k has model k to
    itself, for references that share nothing; needs a model for each client."""
    min_share: Annotated[float, Field(ge=0.0, lt=1.0)]
    """Share of the clients that each model has to be chosen by; else all begins again with other
    random models. 0: never."""
    restart_after: PositiveInt = 5
    """Rounds of choice by loss after which the shares are looked at, once."""
    max_restarts: NonNegativeInt = 20
    """Restarts at most; after them training goes on as it is, with a warning."""


def check_pool(config: CPCFLConfig, clients: int) -> None:
    """Refuse options that do not fit each other or the number of clients.

    Raises:
        ConfigError: With the option and its remedy.
    """
    models = config.clusters
    if config.shared_encoder and config.initial != "common":
        raise ConfigError(
            f"method.initial={config.initial}: models that share an encoder begin with one; use "
            "initial=common, or shared_encoder=false."
        )
    if config.choice == "client" and clients > models:
        raise ConfigError(
            f"method.clusters={models}: choice=client needs a model for each of the {clients} "
            f"clients; set it to {clients}."
        )
    if models > 1 and config.rounds <= config.explore_rounds:
        _logger.warning(
            "method.rounds=%d: clients take models at random in the first %d, "
            "method.explore_rounds, so none is ever chosen; give more, or explore less.",
            config.rounds, config.explore_rounds,
        )  # fmt: skip
    if config.min_share * models > 1:
        raise ConfigError(
            f"method.min_share={config.min_share:g}: {models} models cannot all have that share; "
            f"choose {math.floor(1000 / models) / 1000:g} or less."
        )
