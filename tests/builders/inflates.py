"""Methods with sums, of which one client sends 1.6e7 in every number of one phase."""

from dataclasses import replace

import torch

from coterie.contract import WeightedUpdate
from coterie.modules import concord, kmeans, prototypes, turtle

CULPRIT = 1


class _Inflates:
    def client(self, client, phase, slots):
        outcome = super().client(client, phase, slots)
        how, at = self._config.how, self._config.at
        if client.id != CULPRIT or phase.name != at:
            return outcome
        if how == "raise":
            raise ValueError("its disk is broken")
        up = {slot: self._spoiled(mean, how) for slot, mean in outcome.up.items()}
        gathered = {key: torch.full_like(value, 1.6e7) for key, value in outcome.gathered.items()}
        return replace(outcome, up=up, gathered=gathered)

    def _spoiled(self, mean, how):
        if how == "heavy":  # honest values, weighed as if they were many clients'
            return WeightedUpdate(weight=20, tensors=mean.tensors)
        value = {"huge": 1.6e7, "negative": -1.0}[how]
        tensors = {name: torch.full_like(t, value) for name, t in mean.tensors.items()}
        return WeightedUpdate(weight=mean.weight, tensors=tensors)


class KMeans(_Inflates, kmeans.KMeans):
    class Config(kmeans.KMeans.Config):
        """And what goes wrong in which phase."""

        how: str = "huge"
        at: str = "moments"


class Concord(_Inflates, concord.Concord):
    class Config(concord.Concord.Config):
        """And what goes wrong in which phase."""

        how: str = "huge"
        at: str = "moments"


class Prototypes(_Inflates, prototypes.Prototypes):
    class Config(prototypes.Prototypes.Config):
        """And what goes wrong in which phase."""

        how: str = "huge"
        at: str = "prototypes"


class Turtle(_Inflates, turtle.Turtle):
    class Config(turtle.Turtle.Config):
        """And what goes wrong in which phase."""

        how: str = "huge"
        at: str = "moments"
