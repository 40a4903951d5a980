"""The contract of a federated method: client half, server half, and phases."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from lightning import LightningModule
from torch import Tensor, nn

from coterie.config.component import dumped, load_target, parse_component, target_of
from coterie.config.method import MethodConfig
from coterie.contract.client import Client
from coterie.contract.clusterer import Clusterer
from coterie.contract.phase import (
    Outcome,
    Phase,
    ServerState,
    Slots,
    Tensors,
    WeightedUpdate,
    averaged,
)
from coterie.contract.seeds import blank
from coterie.contract.tensor_spec import DTYPES

_NETWORKS = ("encoder", "augmentation")


class BuildsNetwork(Protocol):
    """A component that builds a network."""

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """Build the network for samples of this shape."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The data's shape and classes, and the networks' configs.

    Attributes:
        shape: A sample's shape: (channels, height, width) or (features,).
        classes: Number of classes in the data; 0 without labels.
        encoder: Config of the representation network, which has an attribute `features`, its
            output width.
        augmentation: Config of the random views of float samples in [0, 1].
        dtype: The parameters' type, from the run's precision.
        k_anonymity: Samples that what a client sends stands for at least; see
            `privacy.k_anonymity`.
        clip: L2 norm to clip each sample's representation to before it enters a sum, in methods
            that declare `Phase.sensitivity`; None without `privacy.dp`.
    """

    shape: tuple[int, ...]
    classes: int
    encoder: BuildsNetwork
    augmentation: BuildsNetwork
    dtype: torch.dtype = torch.float32
    k_anonymity: int = 1
    clip: float | None = None

    @cached_property
    def features(self) -> int:
        """The width of a representation."""
        return int(blank(lambda: self.encoder.build(self.shape)).features)  # type: ignore[arg-type]

    def enough(self, samples: Tensor) -> Tensor:
        """Return which of these numbers of samples are enough for a client to send their mean.

        Those of `k_anonymity` or more; all numbers, even 0, if `k_anonymity` is 1.
        """
        return (samples >= self.k_anonymity) | (self.k_anonymity == 1)

    def dumped(self) -> dict[str, Any]:
        """Return the task as plain values."""
        plain = {"shape": [*self.shape], "dtype": str(self.dtype).removeprefix("torch.")}
        networks = {name: dumped(getattr(self, name)) for name in _NETWORKS}
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, **plain, **networks}

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> "Task":
        """Return the task that `dumped` gave.

        Raises:
            ValueError: If its dtype is none; other errors of Python and pydantic for other values.
        """
        read = {"shape": tuple(plain["shape"]), "dtype": getattr(torch, plain["dtype"])}
        if read["dtype"] not in DTYPES:
            raise ValueError(f"{plain['dtype']} is no dtype")
        networks = {name: parse_component(plain[name]) for name in _NETWORKS}
        return cls(**{**plain, **read, **networks})


class Method(Protocol):
    """A federated method: an initial state, its phases, a client half and a server half.

    A method inherits from this class, has a nested or inherited `Config` (a frozen `MethodConfig`),
    and is built from a config and a `Task`. `offer` and `server` have default bodies, those of
    federated averaging. `init` and `client` draw random numbers from the seeds they are given and
    from nothing else; the other functions are pure.

    Attributes:
        needs_labels: Whether clients train with labels.
        vmappable: Whether `executor=vmap` may train clients as one model. It counts for the
            class itself only, not for subclasses. The method promises of its modules: a training
            step computes with the parameters, buffers and batch alone, by operations that `vmap`
            knows; views are drawn from the batch's seed; `on_train_batch_end` changes each
            parameter element by element, and uses neither outputs nor batch.
        scalable: Whether the loss of each training step reaches a parameter: the gradient scaler of
            `precision=16-mixed` takes no step without.
        private: The class that takes its place under `privacy.dp`, with the same config, as
            `package.module:Name`; by default none. It counts for the class itself only.
        fewest_samples: Samples that a client needs; with fewer the partition is refused, but of
            clients that the data names, `faults` decides.
        rounds: Number of rounds.
    """

    needs_labels: ClassVar[bool] = False
    vmappable: ClassVar[bool] = False
    scalable: ClassVar[bool] = True
    private: ClassVar[str | None] = None
    fewest_samples: ClassVar[int] = 2
    rounds: int

    def __init_subclass__(cls, **given: Any) -> None:
        """Give a subclass without a `Config` a new one, whose target is the subclass."""
        super().__init_subclass__(**given)
        inherited = getattr(cls, "Config", None)
        if inherited is not None and "Config" not in vars(cls):
            names = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Config"}
            own = type("Config", (inherited,), {**names, "__doc__": inherited.__doc__})
            setattr(cls, "Config", own)  # noqa: B010 - a method need not have one

    def __init__(self, config: MethodConfig, task: Task) -> None: ...

    @abstractmethod
    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return the state before the first phase.

        `sizes` maps a client to its number of samples.
        """

    @abstractmethod
    def next(self, server: ServerState) -> Phase | None:
        """Return the phase that follows this state; None at the end."""

    def offer(self, server: ServerState, phase: Phase) -> Slots:
        """Return the slots of `phase.down`, by default as they are in the server's state."""
        return {slot: server.slots[slot] for slot in phase.down}

    def measured(self, server: ServerState) -> Mapping[str, float]:
        """Return the server's measurements of the phase that led to this state; by default none.

        A name that clients send too, such as `loss`, has the server's value.
        """
        return {}

    @abstractmethod
    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Run one client's task; the slots are read-only views."""

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Return the server's state after the phase; by default the means replace its slots.

        Args:
            server: The state before the phase.
            phase: The phase.
            means: Slot to weighted mean over the clients that contributed to it.
            gathered: Client to its gathered tensors, in client order.
        """
        return server.advance(phase, averaged(means))

    @abstractmethod
    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the model to evaluate and save: the server's (None), or that of a client."""


def build_method(config: MethodConfig, task: Task) -> Method:
    """Build the method that the config names, or its private form under differential privacy."""
    kind = load_target(target_of(config))
    private = None if task.clip is None else vars(kind).get("private")
    method: Method = (load_target(private) if private else kind)(config, task)
    return method


@runtime_checkable
class TrainsModule(Protocol):
    """A method whose clients train a LightningModule."""

    def build(self) -> LightningModule:
        """Build the module, or that of the first stage, initialised from the global generator."""
        ...


@runtime_checkable
class GroupsClients(Protocol):
    """A method that assigns clients to groups, which are tracked, drawn and compared."""

    def client_groups(self, server: ServerState) -> Mapping[int, Sequence[int]]:
        """Return the group of each client by round, from 0; −1 for absent clients."""
        ...

    def members(self, server: ServerState) -> Mapping[int, int]:
        """Return each client's present group, without clients that have none."""


@runtime_checkable
class SumsGroups(Protocol):
    """A method whose clients send sums over groups of their samples, such as clusters.

    The audit of a run says how few samples stand behind a vector. Of a method without this, a
    contribution stands for all samples of its client.
    """

    def group_sizes(self, sums: Slots) -> Mapping[str, Tensor]:
        """Return the number of samples of each group, by slot.

        Args:
            sums: What a client contributes or, under secure aggregation, the sum over clients.
        """
        ...
