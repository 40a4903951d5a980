"""FedCA: SimCLR with a dictionary of all clients' projections and an alignment to a base model.

Zhang et al., "Federated Unsupervised Representation Learning" (arXiv:2010.08982): contrastive
averaging with a dictionary module, which gives every client negatives from all others, and an
alignment module, which keeps representations near those of one model that all have.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from coterie.contract import (
    Client,
    Entry,
    Outcome,
    Phase,
    Role,
    ServerState,
    Slots,
    StateRoles,
    Task,
    Tensors,
    TensorSpec,
    WeightedUpdate,
    averaged,
    concatenated,
    derive_seed,
)
from coterie.contract.tensor_spec import UNIT_LENGTH
from coterie.errors import ConfigError
from coterie.gradcache import Terms, Views, gradient_cached, through
from coterie.losses.contrastive import nt_xent_against
from coterie.modules.pretraining import (
    ONLINE,
    CrossSilo,
    Pretraining,
    TwoViews,
)
from coterie.modules.simclr import SimCLRConfig
from coterie.networks.heads import UnitLength
from coterie.precision import widened

DICTIONARY, BASE, PROJECTIONS = "dictionary", "base", "projections"


class DictionaryContrast(TwoViews):
    """The network, the frozen base encoder, and the loss against the dictionary."""

    frozen = ("base",)
    config: "FedCA.Config"

    def __init__(self, config: "FedCA.Config", task: Task) -> None:
        super().__init__(config, task)
        self.base = deepcopy(self.online.encoder).requires_grad_(False)
        self.dictionary = torch.zeros(0, config.projection, dtype=task.dtype)
        self.to(task.dtype)

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return NT-Xent with the dictionary's negatives, plus β times the alignment."""
        (h_a, z_a), (h_b, z_b) = (through(self.represent, view) for view in views)
        others = self.dictionary.to(z_a.device)
        contrast = nt_xent_against(z_a, z_b, others, self.config.temperature)
        if not self.config.alignment:
            return self.logged({"loss": contrast, "contrast": contrast})
        pairs = zip((h_a, h_b), (through(self.base, view) for view in views), strict=True)
        apart = [(widened(h) - widened(b)).square().sum(dim=1).mean() for h, b in pairs]
        align = 0.5 * (apart[0] + apart[1])
        loss = contrast + self.config.alignment * align
        return self.logged({"loss": loss, "contrast": contrast, "alignment": align})

    def represent(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Return representations and projections of a view."""
        h = self.online.encoder(view)
        return h, self.online.projector(h)


class FedCA(Pretraining["FedCA.Config", DictionaryContrast]):
    """Contrasts two views, with negatives from all clients, which send projections of samples.

    Clients keep nothing.
    """

    metrics = frozenset({"loss", "contrast", "alignment"})
    network = DictionaryContrast
    roles = StateRoles(*ONLINE, Entry(pattern="base.*", role=Role.AVERAGE, slot=BASE))

    class Config(CrossSilo, SimCLRConfig):
        """FedCA's configuration; the defaults are FedSimCLR's where its paper gives none."""

        alignment: Annotated[float, Field(ge=0.0)] = 0.01
        """β, the weight of the alignment to the base model."""
        sent: NonNegativeInt = 128
        """Number of a client's samples whose projections it sends each round, chosen at random.
        With 0 and `alignment=0`, the method is FedSimCLR."""
        epochs: PositiveInt = 5
        batch_size: Annotated[int, Field(ge=2)] = 128
        """Samples per batch, n."""

    def __init__(self, config: Config, task: Task) -> None:
        if config.sent and task.k_anonymity > 1:
            raise ConfigError(
                f"method.sent={config.sent}: clients send single samples' projections, and "
                f"privacy.k_anonymity={task.k_anonymity} forbids it; set privacy.k_anonymity=1 as "
                "well."
            )
        super().__init__(config, task)

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return a fresh model, which is also the base model, and an empty dictionary."""
        start = super().init(sizes, seed)
        empty = torch.zeros(0, self._config.projection, dtype=self._task.dtype)
        return replace(start, slots={**start.slots, DICTIONARY: {PROJECTIONS: empty}})

    def next(self, server: ServerState) -> Phase | None:
        """Return the next round; the base model is never sent back."""
        phase = super().next(server)
        shape = (range(self._config.sent + 1), self._config.projection)
        return phase and replace(
            phase,
            down=phase.down | {DICTIONARY},
            up=phase.up - {BASE},
            gathered=frozenset({PROJECTIONS}),
            specs={PROJECTIONS: TensorSpec(shape=shape, lowest=-UNIT_LENGTH, highest=UNIT_LENGTH)},
        )

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Train against the dictionary, then compute projections for the next one."""
        module = client.module(self.stage, self.build)
        module.dictionary = slots[DICTIONARY][PROJECTIONS].clone()
        trained = super().client(client, phase, {s: slots[s] for s in slots if s != DICTIONARY})
        config = self._config
        draw = torch.Generator().manual_seed(derive_seed(client.seed, DICTIONARY))
        chosen = torch.randperm(len(client.data), generator=draw)[: config.sent]
        project = nn.Sequential(module.online, UnitLength())
        projections = torch.zeros(0, config.projection, dtype=self._task.dtype)
        if len(chosen):
            projections = client.embed(project, client.data.take(chosen.numpy()))
        return replace(trained, gathered={PROJECTIONS: projections})

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Average the networks; this round's projections are the next dictionary."""
        found = concatenated(gathered, PROJECTIONS).to(self._task.dtype)
        return server.advance(phase, averaged(means) | {DICTIONARY: {PROJECTIONS: found}})
