"""Every client writes to the next one in every phase, and reports what it has received."""

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
    seeded,
)
from coterie.contract.clusterer import Clusterer


class Messenger(Method):
    """Two phases a round: "talk" has no slot up, "sum" averages; both carry peer messages.

    A peer message is (sender, round, step). The tensor "received" has one row (sender, *peer
    message) for each peer message. What a client keeps and sends up depends on its whole past:
    state, peer messages and seeds.
    """

    needs_labels = False

    class Config(MethodConfig):
        """Who takes part, phase by phase; everyone where the list ends."""

        rounds: PositiveInt = 2
        clients: PositiveInt = 3
        cohorts: tuple[float | int | tuple[int, ...], ...] = ()

    def __init__(self, config: Config, task: Task) -> None:
        self._config = config
        self.rounds = config.rounds

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """A sum that starts at zero."""
        return ServerState(slots={"total": {"value": torch.zeros(1, dtype=torch.float64)}})

    def next(self, server: ServerState) -> Phase | None:
        """Talk, sum, talk, sum, …"""
        if server.round == self.rounds:
            return None
        number = 2 * server.round + server.step
        cohorts = self._config.cohorts
        total = frozenset({"total"})
        return Phase(
            name=("talk", "sum")[server.step],
            stage="only",
            round=server.round + 1,
            step=server.step,
            cohort=cohorts[number] if number < len(cohorts) else 1.0,
            down=total if server.step == 0 else frozenset(),
            up=total if server.step == 1 else frozenset(),
            gathered=frozenset({"received", "seed"}),
            peer_messages=frozenset({"message"}),
            metrics=frozenset({"tasks"}),
            ends_round=server.step == 1,
        )

    def offer(self, server: ServerState, phase: Phase) -> Slots:
        """The sum so far, in the first phase."""
        return {slot: server.slots[slot] for slot in phase.down}

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Read, remember, write on."""
        with seeded(client.seed):
            noise = torch.rand(1, dtype=torch.float64)
        heard = sum((m["message"].sum() for m in client.peer_messages.values()), torch.zeros(()))
        before = client.state or {"memory": noise.new_zeros(1), "tasks": torch.zeros(1)}
        memory = 0.5 * before["memory"] + noise + heard
        tasks = before["tasks"] + 1
        rows = [
            torch.cat([torch.tensor([by]), m["message"]]) for by, m in client.peer_messages.items()
        ]
        received = torch.stack(rows) if rows else torch.zeros(0, 4, dtype=torch.int64)
        up = {"total": WeightedUpdate(weight=len(client.data), tensors={"value": memory})}
        return Outcome(
            up=up if "total" in phase.up else {},
            gathered={"received": received, "seed": torch.tensor([client.seed])},
            state={"memory": memory, "tasks": tasks},
            peer_messages={
                (client.id + 1) % self._config.clients: {
                    "message": torch.tensor([client.id, phase.round, phase.step])
                }
            },
            metrics={"tasks": tasks.item()},
        )

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Add the mean to the sum; remember who took part."""
        slots = {}
        if "total" in means:
            value = server.slots["total"]["value"] + means["total"].tensors["value"]
            slots = {"total": {"value": value}}
        return server.advance(phase, slots, {"last": list(gathered)})

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Nothing is learned: the samples themselves."""
        return Clusterer(nn.Identity())
