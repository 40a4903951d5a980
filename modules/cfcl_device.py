"""What a device of CF-CL keeps from event to event, its neighbours' data included.

Wagle et al., "Unsupervised Federated Optimization at the Edge: D2D-Enabled Learning without
Labels", section III.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.contract import Tensors

RESERVE, PULLED = ("reserve_samples", "reserve_embeddings"), ("samples", "embeddings")
"""The keys of messages: samples where exchange is explicit, else embeddings."""


@dataclass
class Device:
    """A device's state.

    Attributes:
        round: The round whose model it trains; 0 before its first step.
        exposure: The size of its training set, summed over the steps of that round: its weight.
        margin: m_reg of the last pull.
        network: The entries of its model's state.
        adam: What Adam remembers.
        reserve: Positions of its own reserve samples, int64, once they were chosen.
        reserves: Neighbour to the reserve samples or embeddings that it pushed.
        pulled: Neighbour to the samples or embeddings that were pulled from it.
    """

    round: int = 0
    exposure: int = 0
    margin: float = 0.0
    network: Tensors = field(default_factory=dict)
    adam: Tensors = field(default_factory=dict)
    reserve: Tensor | None = None
    reserves: dict[int, Tensor] = field(default_factory=dict)
    pulled: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def read(cls, state: Tensors | None, mail: Mapping[int, Tensors]) -> "Device":
        """A device of what it kept, after it has read its mail.

        What is pulled takes the place of all that was pulled before.
        """
        device = cls() if state is None else cls._kept(state)
        letters = [(by, key, value) for by in sorted(mail) for key, value in mail[by].items()]
        device.reserves |= {by: value for by, key, value in letters if key in RESERVE}
        pulled = {by: value for by, key, value in letters if key in PULLED}
        device.pulled = pulled or device.pulled
        return device

    @classmethod
    def _kept(cls, state: Tensors) -> "Device":
        groups: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            group, _, name = key.partition("/")
            groups.setdefault(group, {})[name] = value
        counts = groups["counts"][""].tolist()
        return cls(
            round=counts[0],
            exposure=counts[1],
            margin=groups["margin"][""].item(),
            network=groups.get("network", {}),
            adam=groups.get("adam", {}),
            reserve=groups.get("reserve", {}).get(""),
            reserves={int(by): value for by, value in groups.get("reserves", {}).items()},
            pulled={int(by): value for by, value in groups.get("pulled", {}).items()},
        )

    def tensors(self) -> dict[str, Tensor]:
        """What it keeps, by name."""
        named = {
            "counts": torch.tensor([self.round, self.exposure]),
            "margin": torch.tensor(self.margin, dtype=torch.float64),
        }
        if self.reserve is not None:
            named["reserve"] = self.reserve
        groups: dict[str, Mapping[int, Tensor] | Tensors] = {
            "network": self.network, "adam": self.adam, "reserves": self.reserves,
            "pulled": self.pulled,
        }  # fmt: skip
        for group, tensors in groups.items():
            named |= {f"{group}/{key}": value for key, value in tensors.items()}
        return named

    @property
    def received(self) -> Tensor | None:
        """All that was pulled (k, …), in the neighbours' order; None if nothing was."""
        parts = [self.pulled[by] for by in sorted(self.pulled)]
        return torch.cat(parts) if parts else None
