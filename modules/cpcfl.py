"""CP-CFL and IFCA: a pool of models, of which each client trains the one that fits its data best.

Tun et al., "Contrastive encoder pre-training-based clustered federated learning for heterogeneous
data", algorithm 2: N heads on one (pretrained) encoder. For T_c rounds a client takes a random
model and trains its head only; then it takes the model with the lowest loss on its data and trains
all of it. Ghosh et al., "An Efficient Framework for Clustered Federated Learning" (IFCA), is the
same with N random models and T_c = 0, and restarts from other random models until every model has
clients. The server averages per model; clients keep nothing.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import nn
from torch.nn import functional

from coterie.contract import (
    Client,
    Method,
    Outcome,
    Phase,
    Plan,
    ServerState,
    Slots,
    Task,
    Tensors,
    TensorSpec,
    WeightedUpdate,
    averaged,
    blank,
    derive_seed,
    load_tensors,
    seeded,
)
from coterie.contract.clusterer import Clusterer
from coterie.contract.phase import Json
from coterie.errors import ConfigError
from coterie.modules.choice_history import (
    favourite,
    history,
    latest_choices,
    remember,
    smallest_share,
)
from coterie.modules.classification import ROLES, Classification, ClassificationConfig

EXPLORATION, EXPLOITATION = "exploration", "exploitation"

_logger = logging.getLogger(__name__)


class CPCFLConfig(ClassificationConfig):
    """Options of CP-CFL and IFCA: the pool of models, the choice of a model, restarts."""

    sample_clusters: ClassVar[str | None] = None

    optimizer: Literal["sgd", "adam"] = "adam"
    learning_rate: PositiveFloat = 1e-3
    rounds: PositiveInt = 100
    """Rounds T, including those of exploration; a restart resets the count."""
    epochs: PositiveInt = 3
    """Local epochs per round, E, of the head."""
    batch_size: Annotated[int, Field(ge=2)] = 32
    """Samples per batch."""
    clusters: PositiveInt = 3
    """Number of models in the pool, N; 1 is FedAvg, without exploration."""
    explore_rounds: NonNegativeInt = 10
    """Rounds T_c in which clients take random models and train heads only."""
    initial: Literal["common", "independent"] = "common"
    """`common`: N random heads on one encoder (CP-CFL); `independent`: N random models."""
    encoder_epochs: NonNegativeInt | None = None
    """Number of a client's epochs that also train the encoder, which is frozen afterwards; by
    default all. 0 freezes it in all rounds."""
    shared_encoder: bool = False
    """Whether all models share one encoder, averaged over all clients, and differ in their heads;
    needs initial=common."""
    choice: Literal["loss", "client"] = "loss"
    """`loss`: a client takes the model with the lowest loss; `client`: client k trains model k
    alone, for references without sharing; needs a model for each client."""
    min_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the clients that has to choose each model, or else the pool restarts with new random
    models. 0: no restarts."""
    restart_after: PositiveInt = 5
    """Rounds of choice by loss after which the shares are checked, once."""
    max_restarts: NonNegativeInt = 20
    """Maximal number of restarts; after them training continues, with a warning."""


def check_pool(config: CPCFLConfig, clients: int) -> None:
    """Refuse options that do not fit each other or the number of clients."""
    models = config.clusters
    if config.shared_encoder and config.initial != "common":
        raise ConfigError(
            f"method.initial={config.initial}: models that share an encoder start with the same "
            "one; use initial=common, or shared_encoder=false."
        )
    if config.choice == "client" and clients > models:
        raise ConfigError(
            f"method.clusters={models}: choice=client needs a model for each of the {clients} "
            f"clients; set it to {clients}."
        )
    if models > 1 and config.rounds <= config.explore_rounds:
        _logger.warning(
            "method.rounds=%d: clients take models at random in the first %d rounds "
            "(method.explore_rounds), so no model is ever chosen by its loss; give more rounds, "
            "or explore less.",
            config.rounds,
            config.explore_rounds,
        )
    if config.min_share * models > 1:
        raise ConfigError(
            f"method.min_share={config.min_share:g}: {models} models cannot all have that share; "
            f"choose {math.floor(1000 / models) / 1000:g} or less."
        )


class CPCFL(Method):
    """Supervised; a pool of classifiers on a pretrained encoder, each client trains its best."""

    needs_labels = True

    class Config(CPCFLConfig):
        """CP-CFL's configuration; the defaults are the paper's."""

    def __init__(self, config: CPCFLConfig, task: Task) -> None:
        self._config, self._task = config, task
        self.rounds = config.rounds

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return the pool; model 0 is FedAvg's initial model."""
        check_pool(self._config, len(sizes))
        metadata: dict[str, Json] = {
            "seed": seed,
            "clients": len(sizes),
            "began": 0,
            "looked": False,
            "restarts": 0,
            "choices": {},
        }
        learns = any(True for _ in blank(self.build).encoder.parameters())
        return ServerState(
            slots=self._pool(seed), metadata={**metadata, "fixed_encoder": not learns}
        )

    def next(self, server: ServerState) -> Phase | None:
        """Return the next round, of exploration or of exploitation."""
        config, done = self._config, server.round - server.whole("began")
        if done >= config.rounds:
            return None
        explores = done < config.explore_rounds
        heads = frozenset(_head(n) for n in range(config.clusters))
        # Until one of them is trained, common encoders are equal and are sent once.
        still = self._is_still(server)
        alike = config.initial == "common" and (done <= config.explore_rounds or still)
        models = range(1 if alike else config.clusters)
        trained = range(0 if explores or still else config.clusters)
        stage = EXPLORATION if explores else EXPLOITATION
        return Phase(
            name=stage,
            stage=stage,
            round=server.round + 1,
            cohort=config.participation,
            down=heads | {self._encoder(n) for n in models},
            up=heads | {self._encoder(n) for n in trained},
            gathered=frozenset({"choice"}),
            metrics=frozenset({"loss"}),
            specs={"choice": TensorSpec(dtype=torch.int64, lowest=0, highest=config.clusters - 1)},
        )

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Run lines 15 to 26 of Algorithm 2."""
        config, explores = self._config, phase.stage == EXPLORATION
        module = client.module("classification", self.build)
        if config.choice == "client":
            choice = client.id
        elif explores or config.clusters == 1:
            choice = chosen_at_random(config.clusters, client.seed)
        else:
            models = range(config.clusters)
            choice = chosen_by_loss(client, (self._load(module, slots, n) for n in models))
        self._load(module, slots, choice)
        module.start(0 if explores else config.encoder_epochs)
        fit = client.fit(module, Plan(batch_size=config.batch_size, epochs=config.epochs))
        parts = {_head(choice): "classifier", self._encoder(choice): "encoder"}
        sent = {slot: part for slot, part in parts.items() if slot in phase.up}
        own = ROLES.contributions(module, sent.values(), weight=len(client.data))
        return Outcome(
            up={slot: own[part] for slot, part in sent.items()},
            gathered={"choice": torch.tensor(choice)},
            smallest={"choice": len(client.data)},
            metrics=fit.metrics,
        )

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Run lines 13 and 14 of Algorithm 2; a model that no client chose keeps its values."""
        choices = remember(server, phase.round, gathered, server.whole("clients"))
        after = server.advance(phase, averaged(means), {"choices": choices})
        if not is_due(after, self._config):
            return after
        if has_failed(after, self._config):
            return self._restarted(after)
        return replace(after, metadata={**after.metadata, "looked": True})

    def client_groups(self, server: ServerState) -> Mapping[int, list[int]]:
        """Return each client's model by round, −1 for absent clients."""
        return history(server)

    def members(self, server: ServerState) -> Mapping[int, int]:
        """Return the model of the current pool that each client chose last."""
        return latest_choices(server, after=server.whole("began"))

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the model that the client chose last, or else the one that most clients did."""
        chosen = self.members(server)
        choice = favourite(chosen.values())
        if client is not None:
            choice = chosen.get(client, choice)
        module = blank(self.build)
        load_tensors(module, server.slots[self._encoder(choice)])
        load_tensors(module, server.slots[_head(choice)])
        return module.clusterer()

    def build(self) -> Classification:
        """Return the classifier and its loss."""
        return Classification(self._config, self._task)

    def _pool(self, seed: int) -> Slots:
        """Return freshly initialised models."""
        slots: dict[str, Tensors] = {}
        for n in range(self._config.clusters):
            with seeded(derive_seed(seed, "model", n) if n else seed):
                module = self.build()
            ROLES.check(module)
            slots[_head(n)] = ROLES.slot(module, "classifier")
            encoder = ROLES.slot(module, "encoder")
            common = slots.get(self._encoder(0)) if self._config.initial == "common" else None
            slots[self._encoder(n)] = encoder if common is None else common
        return slots

    def _load(self, module: Classification, slots: Slots, n: int) -> nn.Module:
        """Load model n of the pool into the module; equal encoders are sent only once."""
        load_tensors(module, slots.get(self._encoder(n)) or slots[self._encoder(0)])
        load_tensors(module, slots[_head(n)])
        return nn.Sequential(module.encoder, module.classifier)

    def _encoder(self, n: int) -> str:
        return "encoder" if self._config.shared_encoder else f"encoder/{n}"

    def _is_still(self, server: ServerState) -> bool:
        """Return whether the encoder is never trained, by the config or for lack of parameters."""
        return self._config.encoder_epochs == 0 or server.metadata["fixed_encoder"] is True

    def _restarted(self, server: ServerState) -> ServerState:
        """Return the state with new random models, and rounds counted from here."""
        count = server.whole("restarts") + 1
        pool = self._pool(derive_seed(server.whole("seed"), "restart", count))
        metadata: dict[str, Json] = {"restarts": count, "began": server.round}
        return replace(
            server,
            slots={**server.slots, **pool},
            metadata={**server.metadata, **metadata},
            renewed=frozenset(pool),
        )


class IFCA(CPCFL):
    """Supervised; a pool of random classifiers, of which each client trains its best.

    The best is that of the lowest loss, from the first round on.
    """

    class Config(CPCFLConfig):
        """IFCA's configuration, as CP-CFL compares with it."""

        explore_rounds: NonNegativeInt = 0
        initial: Literal["common", "independent"] = "independent"
        """`common`: N random heads on one encoder; `independent`: N random models (IFCA)."""
        min_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1


def chosen_at_random(models: int, seed: int) -> int:
    """Return a random model, drawn by the client's seed of this task."""
    return derive_seed(seed, "choice") % models


def chosen_by_loss(client: Client, models: Iterable[nn.Module]) -> int:
    """Return the model with the lowest mean cross-entropy on the client's data, CP-CFL's eq. (5).

    Models see the samples without augmentation, in eval mode. Of equal losses the lowest index
    wins; a loss that is not a number counts as infinite.

    Args:
        client: The client, with labels.
        models: Each maps samples in [0, 1] to logits (n, classes).
    """
    labels = client.data.take_labels()
    losses = [
        functional.cross_entropy(client.embed(model).double(), labels).item() for model in models
    ]
    return min(range(len(losses)), key=lambda n: math.inf if math.isnan(losses[n]) else losses[n])


def is_due(server: ServerState, config: CPCFLConfig) -> bool:
    """Return whether to check the shares now, which happens once for each pool.

    It is done after `restart_after` rounds of choice by loss, or, if nobody took part then, after
    the next round in which somebody does.
    """
    if not config.min_share or server.metadata["looked"]:
        return False
    return server.round >= _by_loss_after(server, config) + config.restart_after


def has_failed(server: ServerState, config: CPCFLConfig) -> bool:
    """Return whether some model is the last choice of too few clients, and a restart is allowed.

    Choices count from the first round by loss. Once `max_restarts` is reached, only warn.
    """
    chosen = latest_choices(server, after=_by_loss_after(server, config))
    share = smallest_share(chosen.values(), config.clusters)
    if share >= config.min_share:
        return False
    if server.whole("restarts") < config.max_restarts:
        return True
    _logger.warning(
        "Round %d: a model has %.1f %% of the clients, less than method.min_share, and "
        "method.max_restarts=%d is used up; training goes on as it is.",
        server.round,
        100 * share,
        config.max_restarts,
    )
    return False


def _by_loss_after(server: ServerState, config: CPCFLConfig) -> int:
    """Return the last round of exploration of the current pool."""
    return server.whole("began") + config.explore_rounds


def _head(n: int) -> str:
    return f"head/{n}"
