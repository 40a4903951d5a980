"""A method whose clients do nothing, and rows of numbers for them to hold: all else is us."""

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt

from coterie.config import Component, MethodConfig, PartitionConfig
from coterie.contract import Method, Outcome, Phase, ServerState, WeightedUpdate
from coterie.contract.clusterer import Clusterer
from coterie.contract.data import DataArrays
from coterie.networks.encoders import MLP


class Rows:
    """Vectors of one number each, all different, without labels."""

    class Config(Component):
        samples: PositiveInt

    def __init__(self, config):
        self.config = config

    def arrays(self):
        rows = np.arange(self.config.samples, dtype=np.float32)[:, None]
        return DataArrays(name="rows", samples=rows)


class Pairs(PartitionConfig):
    """Two samples to each client."""

    clients: PositiveInt

    def split(self, data, seed) -> Sequence[np.ndarray]:
        return np.arange(len(data.samples)).reshape(self.clients, 2)


class NoOp(Method):
    """Every client sends its slot back as it came."""

    needs_labels = False

    class Config(MethodConfig):
        rounds: PositiveInt
        elements: PositiveInt = 500_000
        """Float32 numbers of the model; 500,000 are 2 MB."""
        kept: NonNegativeInt = 0
        """Float32 numbers of each client's state, which is another after each turn."""

    def __init__(self, config, task):
        self._config, self._task = config, task
        self.rounds = config.rounds

    def init(self, sizes, seed):
        values = torch.randn(self._config.elements, generator=torch.Generator().manual_seed(0))
        return ServerState(slots={"model": {"weight": values}})

    def next(self, server):
        if server.round >= self.rounds:
            return None
        slots = frozenset({"model"})
        return Phase(name="noop", stage="noop", round=server.round + 1, down=slots, up=slots)

    def offer(self, server, phase):
        return server.slots

    def client(self, client, phase, slots):
        weighted = WeightedUpdate(weight=len(client.data), tensors=slots["model"])
        if not self._config.kept:
            return Outcome(up={"model": weighted})
        values = torch.full((self._config.kept,), float(phase.round + client.id))
        return Outcome(up={"model": weighted}, state={"own": values})

    def server(self, server, phase, means, gathered):
        return server.advance(phase, {slot: mean.tensors for slot, mean in means.items()})

    def model_for(self, server, client):
        return Clusterer(MLP(hidden=(), features=1).build((1,)))
