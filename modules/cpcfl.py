"""CP-CFL and IFCA: a pool of models, of which each client trains the one that suits its data.

Tun et al., "Contrastive encoder pre-training-based clustered federated learning for heterogeneous
data", algorithm 2: N heads on one (pretrained) encoder. For T_c rounds a client takes a model at
random and trains its head alone; then it takes the one with the least loss on its data and trains
all of it. Ghosh et al., "An Efficient Framework for Clustered Federated Learning" (IFCA), is the
same with N random models and T_c = 0. The server averages per model; clients keep nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt
from torch import nn

from coterie.contract import (
    Client,
    Mean,
    Outcome,
    Phase,
    Plan,
    ServerState,
    Slots,
    Task,
    Tensors,
    derive_seed,
    load_tensors,
    seeded,
)
from coterie.contract.clusterer import Clusterer
from coterie.contract.phase import Fact
from modules.classification import RULES, Classification
from modules.cpcfl_config import CPCFLConfig, check_pool
from modules.model_choice import (
    chosen_at_random,
    chosen_by_loss,
    favourite,
    history,
    latest_choices,
    remember,
)
from modules.pool_restarts import has_failed, is_due, whole

EXPLORATION, EXPLOITATION = "exploration", "exploitation"


class CPCFL:
    """Clustered federated learning on a pretrained encoder."""

    needs_labels = True

    class Config(CPCFLConfig):
        """CP-CFL's configuration; the defaults are the paper's."""

        explore_rounds: NonNegativeInt = 10
        """Rounds T_c in which clients take models at random and train heads alone."""
        initial: Literal["common", "independent"] = "common"
        """`common`: N random heads on one encoder (CP-CFL); `independent`: N random models."""
        min_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
        """Share of the clients that each model has to be chosen by; else all begins again with
        other random models. 0: never."""

    def __init__(self, config: CPCFLConfig, task: Task) -> None:
        self._config, self._task = config, task
        self.rounds = config.rounds

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """The pool: model 0 is the one that FedAvg would begin with."""
        check_pool(self._config, len(sizes))
        facts: dict[str, Fact] = {
            "seed": seed,
            "clients": len(sizes),
            "began": 0,
            "looked": False,
            "restarts": 0,
            "choices": {},
        }
        with seeded(0):
            learns = any(True for _ in self._build().encoder.parameters())
        return ServerState(slots=self._pool(seed), facts={**facts, "fixed_encoder": not learns})

    def next(self, server: ServerState) -> Phase | None:
        """A round of exploration or of exploitation."""
        config, done = self._config, server.round - whole(server, "began")
        if done >= config.rounds:
            return None
        explores = done < config.explore_rounds
        heads = frozenset(_head(n) for n in range(config.clusters))
        # Until the first of them is trained, common encoders are one and are sent as one.
        still = self._is_still(server)
        alike = config.initial == "common" and (done <= config.explore_rounds or still)
        models = range(1 if alike else config.clusters)
        trained = range(0 if explores or still else config.clusters)
        stage = EXPLORATION if explores else EXPLOITATION
        return Phase(
            name=stage, stage=stage, round=server.round + 1, cohort=config.participation,
            down=heads | {self._encoder(n) for n in models},
            up=heads | {self._encoder(n) for n in trained},
            records=frozenset({"choice"}), metrics=frozenset({"loss"}),
        )  # fmt: skip

    def offer(self, server: ServerState, phase: Phase) -> Slots:
        """The pool."""
        return {slot: server.slots[slot] for slot in phase.down}

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Algorithm 2, lines 15 to 26."""
        config, explores = self._config, phase.stage == EXPLORATION
        module = client.module("classification", self._build)
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
        size = len(client.data)
        up = {
            slot: Mean(weight=size, tensors=RULES.slot(module, part))
            for slot, part in parts.items()
            if slot in phase.up
        }
        record = {"choice": torch.tensor(choice)}
        return Outcome(up=up, records=record, metrics=fit.metrics)

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, Mean],
        records: Mapping[int, Tensors],
    ) -> ServerState:
        """Algorithm 2, lines 13 and 14; a model that nobody chose keeps its values."""
        choices = remember(server, phase.round, records, whole(server, "clients"))
        slots = {slot: mean.tensors for slot, mean in means.items()}
        after = server.advance(phase, slots, {"choices": choices})
        if not is_due(after, self._config):
            return after
        if has_failed(after, self._config):
            return self._restarted(after)
        return replace(after, facts={**after.facts, "looked": True})

    def client_groups(self, server: ServerState) -> Mapping[int, list[int]]:
        """Round to the model of each client, −1 for the absent."""
        return history(server)

    def members(self, server: ServerState) -> Mapping[int, int]:
        """Client to the model of the present pool that it chose last."""
        return latest_choices(server, after=whole(server, "began"))

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """The model that a client chose last; for others the one that most clients chose last."""
        chosen = self.members(server)
        choice = favourite(chosen.values()) if client is None else chosen.get(client)
        choice = favourite(chosen.values()) if choice is None else choice
        with seeded(0):  # every drawn value is replaced; the global generator stays as it was
            module = self._build()
        load_tensors(module, server.slots[self._encoder(choice)])
        load_tensors(module, server.slots[_head(choice)])
        return module.clusterer()

    def _build(self) -> Classification:
        return Classification(self._config, self._task)

    def _pool(self, seed: int) -> Slots:
        """Freshly initialised models."""
        slots: dict[str, Tensors] = {}
        for n in range(self._config.clusters):
            with seeded(derive_seed(seed, "model", n) if n else seed):
                module = self._build()
            RULES.check(module)
            slots[_head(n)] = RULES.slot(module, "classifier")
            encoder = RULES.slot(module, "encoder")
            common = slots.get(self._encoder(0)) if self._config.initial == "common" else None
            slots[self._encoder(n)] = encoder if common is None else common
        return slots

    def _load(self, module: Classification, slots: Slots, n: int) -> nn.Module:
        """Make the module model n of the pool; encoders that are alike are offered once."""
        load_tensors(module, slots.get(self._encoder(n)) or slots[self._encoder(0)])
        load_tensors(module, slots[_head(n)])
        return nn.Sequential(module.encoder, module.classifier)

    def _encoder(self, n: int) -> str:
        return "encoder" if self._config.shared_encoder else f"encoder/{n}"

    def _is_still(self, server: ServerState) -> bool:
        """Whether no encoder is ever trained: by the config, or because it has no parameters."""
        return self._config.encoder_epochs == 0 or server.facts["fixed_encoder"] is True

    def _restarted(self, server: ServerState) -> ServerState:
        """Other random models, and rounds counted from here."""
        count = whole(server, "restarts") + 1
        pool = self._pool(derive_seed(whole(server, "seed"), "restart", count))
        facts: dict[str, Fact] = {"restarts": count, "began": server.round}
        return replace(
            server, slots={**server.slots, **pool}, facts={**server.facts, **facts},
            renewed=frozenset(pool),
        )  # fmt: skip


class IFCA(CPCFL):
    """Iterative federated clustering: random models, chosen by loss from the first round on."""

    class Config(CPCFLConfig):
        """IFCA's configuration, as CP-CFL compares with it."""

        explore_rounds: NonNegativeInt = 0
        """Rounds T_c in which clients take models at random and train heads alone."""
        initial: Literal["common", "independent"] = "independent"
        """`common`: N random heads on one encoder; `independent`: N random models (IFCA)."""
        min_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
        """Share of the clients that each model has to be chosen by; else all begins again with
        other random models. 0: never."""


def _head(n: int) -> str:
    return f"head/{n}"
