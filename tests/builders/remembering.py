"""A stage of the aggregation with all that a stage may keep: at the server, and for each client."""

from dataclasses import replace

import torch

from coterie.aggregation.stage import Stage
from coterie.config.component import Component
from coterie.contract.phase import WeightedUpdate

SLOT = "aggregation/remembering/rounds"


class Remembering(Stage):
    """Counts a client's tasks in its state, and phases in a slot that clients send back."""

    name = "remembering"

    class Config(Component):
        """Of nothing."""

    def __init__(self, config):
        self.config = config

    def offers(self, phase, server, kept):
        return {"rounds": kept.get("rounds", {"n": torch.zeros(1)})}

    def contribute(self, sent, task):
        tasks = task.state.get("tasks", torch.zeros(1)) + 1
        up = {SLOT: WeightedUpdate(weight=1, tensors={"n": task.received[SLOT]["n"] + 1})}
        return replace(
            sent, up={**sent.up, **up}, state={**sent.state, self.name: {"tasks": tasks}}
        )

    def step(self, run, means, kept):
        return means, {"rounds": means[SLOT].tensors}
