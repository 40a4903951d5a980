"""A pool of models, one sum for each: every client chooses one and trains no other."""

from collections.abc import Mapping

import torch
from pydantic import PositiveInt
from torch import nn

from coterie.config.method import MethodConfig
from coterie.contract import (
    Client,
    Method,
    Outcome,
    Phase,
    ServerState,
    Slots,
    Task,
    Tensors,
    WeightedUpdate,
)
from coterie.contract.clusterer import Clusterer


class Pool(Method):
    """Client c chooses `choices[c]` and sends (value of the model) + 10 c with weight c + 1."""

    needs_labels = False

    class Config(MethodConfig):
        """Who chooses what; and who fails, in which way."""

        rounds: PositiveInt = 1
        models: PositiveInt = 4
        choices: tuple[int, ...] = (0, 2, 0, 3, 2)
        broken: tuple[int, ...] = ()
        """These raise an error in their task."""
        diverged: tuple[int, ...] = ()
        """These send a value that is not finite."""

    def __init__(self, config: Config, task: Task) -> None:
        self._config = config
        self.rounds = config.rounds

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Model m has the value m / 3, which no float32 is."""
        slots = {
            f"model/{m}": {"w": torch.full((2,), m / 3), "b": torch.tensor(-m / 7)}
            for m in range(self._config.models)
        }
        return ServerState(slots=slots)

    def next(self, server: ServerState) -> Phase | None:
        """One phase a round, with all models down and any of them up."""
        if server.round == self.rounds:
            return None
        names = frozenset(server.slots)
        return Phase(
            name="choose",
            stage="only",
            round=server.round + 1,
            down=names,
            up=names,
            gathered=frozenset({"choice"}),
            repeats=8.0,
        )

    def offer(self, server: ServerState, phase: Phase) -> Slots:
        """All models."""
        return server.slots

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Choose and train one model."""
        if client.id in self._config.broken:
            raise ValueError(f"disk {client.id} is full\nand more")
        choice = self._config.choices[client.id]
        offered = slots[f"model/{choice}"]
        tensors = {name: value + 10 * client.id for name, value in offered.items()}
        if client.id in self._config.diverged:
            tensors["w"][1] = torch.nan
        return Outcome(
            up={f"model/{choice}": WeightedUpdate(weight=client.id + 1, tensors=tensors)},
            gathered={"choice": torch.tensor(choice)},
        )

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Replace the models that were trained; remember the weights."""
        slots = {slot: mean.tensors for slot, mean in means.items()}
        weights = {slot: mean.weight for slot, mean in means.items()}
        return server.advance(phase, slots, {"weights": weights})

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Nothing is learned: the samples themselves."""
        return Clusterer(nn.Identity())
