"""Federated averaging of a user's own LightningModule.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(arXiv:1602.05629), Algorithm 1, for any module: in each round a plain Trainer trains it on each
client, by the user's own loaders, and the server averages. Layers named as personal stay with their
client: normalisation in Li et al., "FedBN" (arXiv:2102.07623), heads in Arivazhagan et al.,
"Federated Learning with Personalization Layers" (FedPer, arXiv:1912.00818).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt, PrivateAttr
from torch import Tensor

from coterie.config.component import NestedComponent, target_of
from coterie.config.method import MethodConfig
from coterie.contract import (
    Client,
    Entry,
    Method,
    Outcome,
    Phase,
    Role,
    ServerState,
    Slots,
    StateRoles,
    Task,
    Tensors,
    WeightedUpdate,
    averaged,
    derive_seed,
    load_slots,
    load_tensors,
)
from coterie.contract.clusterer import Clusterer
from coterie.contract.loaders import LoaderSamples, loader_of, split_held_out
from coterie.contract.own_module import (
    Training,
    check_module,
    copy_of,
    has_step,
    layers_like,
    needs_several_rows,
)
from coterie.contract.seeds import seeded_everywhere
from coterie.errors import ConfigError
from coterie.modules.built_module import build_module, load_weights
from coterie.modules.strategies.strategy import Local, Strategy, corrected

SHARED, PERSONAL = "module", "personal"
"""The slot that is averaged, and that of the personal layers' first values."""
STRATEGY = "strategy"
"""The slot of a strategy's values on the server."""
_TRAINER_STATE, _KEPT = "trainer state", "strategy of "
_RESTARTS = (
    "The module's learning-rate schedulers start afresh in each round; with keep_optimizer=true "
    "(method.keep_optimizer on the command line) they run over the whole training"
)
_UNEQUAL = (
    "With participation below 1, a client's schedulers go on only in the rounds that it takes part "
    "in, so clients' learning rates differ, and few reach the end of their schedules"
)
_DRAWN = (
    "On clients self.logger takes numbers only: pictures and other objects do not leave a client "
    "and are left out; validation_step on the server's own loader has the run's logger"
)
_NOT_IN_MODULE = (_TRAINER_STATE, _KEPT)


class Lightning(Method):
    """Federated averaging of a LightningModule of yours, trained by a plain Trainer."""

    class Config(MethodConfig):
        """The module, how long it trains, and what stays with each client."""

        extensible: ClassVar[frozenset[str]] = frozenset({"rounds"})
        logs: ClassVar[bool] = True
        absent: ClassVar[Mapping[str, str]] = {
            "mu": "it is a key of the strategy; give method.strategy=fedprox method.strategy.mu=…"
        }

        module: str | None = None
        """The module's class, package.module:Class."""
        arguments: Mapping[str, Any] = {}
        """Arguments of the class."""
        is_object: bool = False
        """Whether the module is an object of a Python program. Filled in."""
        weights: str | None = None
        """File of the weights to start from: a Lightning checkpoint of the class, what `torch.save`
        wrote of its `state_dict`, or .safetensors; by default the module's own."""
        participation: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
        """Share of the clients in each round."""
        rounds: PositiveInt = 10
        """Rounds."""
        epochs: PositiveInt = 1
        """Local epochs per round; the Trainer continues its count of epochs over the rounds."""
        keep_optimizer: bool = False
        """Whether optimisers, schedulers and callbacks keep their state between rounds; by default
        they start afresh in each."""
        personal: Annotated[tuple[str, ...], Field(strict=False)] = ()
        """Names of the layers that stay with each client, with * for any text: [head.*] is FedPer,
        ["*.bn*"] FedBN."""
        holdout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
        """Share of each client's samples that it holds out, for `validation_step`."""
        validation_every: NonNegativeInt = 1
        """Rounds between validations on the clients' held-out samples; 0: only after the last."""
        own_validation: bool = False
        """Whether each client's data has its own validation loader. Filled in."""
        strategy: NestedComponent = None
        """How clients train and how the server combines their results: fedavg, fedprox, scaffold,
        fednova, feddyn, fedavgm, fedadam, fedyogi, fedadagrad, or {target: package.module:Class, …}
        of your own; by default fedavg. Its keys are method.strategy.KEY."""
        trainer: Mapping[str, Any] = {}
        """Arguments of the Trainer, such as {gradient_clip_val: 1.0}."""

        _object: Any = PrivateAttr(default=None)
        _callbacks: tuple[Any, ...] = PrivateAttr(default=())
        _trainer: dict[str, Any] = PrivateAttr(default_factory=dict)

        def attach(
            self, module: Any, callbacks: tuple[Any, ...] = (), trainer: Mapping[str, Any] = {}
        ) -> None:
            """Attach the objects that a Python program gave, which no YAML can hold.

            Args:
                module: The module.
                callbacks: Lightning callbacks for each client's Trainer.
                trainer: Arguments of the Trainer that are objects.
            """
            self._object, self._callbacks, self._trainer = module, callbacks, dict(trainer)

        @property
        def followers(self) -> tuple[Any, ...]:
            """The Lightning callbacks that a Python program gave."""
            return self._callbacks

    def __init__(self, config: Config, task: Task) -> None:
        self._config, self.rounds, self._built = config, config.rounds, None
        if not isinstance(config.strategy, Strategy | None):
            raise ConfigError(
                f"method.strategy={target_of(config.strategy)}: it is not a strategy; name one of "
                "coterie.modules.strategies."
            )
        self._strategy: Strategy = Strategy() if config.strategy is None else config.strategy
        entries = [Entry(pattern=name, role=Role.KEEP) for name in config.personal]
        self._rules = StateRoles(
            Entry(pattern="*_extra_state", role=Role.RESET),
            *entries,
            Entry(pattern="*", role=Role.AVERAGE, slot=SHARED),
        )

    @property
    def trainer_arguments(self) -> Mapping[str, Any]:
        """The user's arguments for the Trainer."""
        return {**self._config.trainer, **self._config._trainer}

    @property
    def epochs(self) -> int:
        """Local epochs of a round."""
        return self._config.epochs

    @property
    def personal(self) -> tuple[str, ...]:
        """Patterns of the layers that stay with each client."""
        return self._config.personal

    def fill(self, whole: Callable[[Any], Any], seed: int) -> None:
        """Build lazy layers and those of `setup`, unless the module was given as an object."""
        if self._config._object is not None:
            return
        with seeded_everywhere(seed):
            module = self._fresh()
        found = whole(module)
        if found is not module:
            self._config.attach(found, self._config._callbacks, self._config._trainer)

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return the values of the given object, or those of a module built from the run's seed."""
        with seeded_everywhere(seed):
            module = self._fresh()
        check_module(module, self.trainer_arguments)
        if self._config.weights is not None:
            load_weights(module, self._config.weights)
        if self._config.holdout and not has_step(module, "validation_step"):
            raise ConfigError(
                f"holdout={self._config.holdout:g}: {type(module).__name__} has no "
                "validation_step; write one, or leave holdout out."
            )
        self._check_personal(module)
        slots: dict[str, Tensors] = {SHARED: self._rules.slot(module, SHARED)}
        if not slots[SHARED]:
            raise ConfigError(
                "method.personal: every parameter of the module is personal, so there is nothing "
                "to average; name fewer layers."
            )
        if self._config.personal:
            slots[PERSONAL] = self._rules.kept(module)
        names = _trained(module, slots[SHARED])
        slots[STRATEGY] = self._strategy.initial({n: slots[SHARED][n] for n in names})
        metadata: Any = {"clients": len(sizes), "trained": [*names], "tied": _tied(module)}
        return ServerState(slots=slots, metadata=metadata)

    def next(self, server: ServerState) -> Phase | None:
        """Return the next round's training, or the validation that follows it."""
        if server.round >= self.rounds:
            return None
        number, strategy = server.round + 1, self._strategy
        training = Phase(
            name="training",
            stage="training",
            round=number,
            step=server.step,
            cohort=self._config.participation,
            down=frozenset(server.slots) - (frozenset() if strategy.tells else {STRATEGY}),
            up=frozenset({SHARED, STRATEGY} if strategy.hears else {SHARED}),
            metrics=frozenset({"loss"}),
            open_metrics=True,
            untrained={SHARED: _untrained(server)},
            ends_round=not self._validates(number),
        )
        if server.step == 0:
            return training
        return replace(training, name="validation", up=frozenset(), ends_round=True)

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Train the module on the client's samples, or validate it on those held out."""
        samples, config, state = client.data.samples, self._config, client.state or {}
        if not isinstance(samples, LoaderSamples):
            raise ConfigError("data: your own module needs your own data; use data=lightning.")
        module = self._loaded(slots, state)
        source, rows = samples.place(client.data.rows)
        seed = derive_seed(0, "held out", client.id)
        own, held = split_held_out(rows, config.holdout, seed)
        validation = source.validation if config.own_validation else None
        if len(held):
            validation = loader_of(source, held, client.seed, ordered=True)
        joins = needs_several_rows(module)
        training = Training(
            source=source,
            loader=loader_of(source, own, client.seed, joins_last=joins) if phase.up else None,
            validation=validation,
            first_epoch=(phase.round - bool(phase.up)) * config.epochs,
            epochs=config.epochs,
            max_epochs=self.rounds * config.epochs,
            arguments=self.trainer_arguments,
            callbacks=config._callbacks,
            kept=state.get(_TRAINER_STATE),
            keep=config.keep_optimizer,
        )
        if not phase.up:
            metrics = client.score(module, training)
            return Outcome(state=client.state, metrics=metrics, note=_note(training))
        local = self._local(module, slots, state)
        with corrected(module, local, self._strategy):
            done = client.train(module, training)
        up, kept_by_strategy = self._update(module, slots[SHARED], len(own), local)
        found = {**self._rules.kept(module), **kept_by_strategy}
        if done.kept is not None:
            found[_TRAINER_STATE] = done.kept
        note = _note(training, self._on_schedules(client.id) if done.scheduled else "")
        return Outcome(up=up, state=found or None, metrics=done.metrics, note=note)

    def _on_schedules(self, client: int) -> str:
        """Return a note on learning-rate schedules; if all clients take part, only for client 0."""
        partial = self._config.participation < 1
        if self.rounds == 1 or (client > 0 and not partial):
            return ""
        if not self._config.keep_optimizer:
            return _RESTARTS
        return _UNEQUAL if partial else ""

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Apply the strategy to the clients' means, and return the server's next state."""
        slots, strategy = averaged(means), self._strategy
        if SHARED not in means:
            return server.advance(phase, slots)
        names: Any = server.metadata["trained"]
        tied: Any = server.metadata["tied"]
        before, mean = ({n: s[n] for n in names} for s in (server.slots[SHARED], slots[SHARED]))
        share = means[SHARED].weight / server.whole("clients") if strategy.equal else 1.0
        received = slots.get(STRATEGY, {})
        values, own = strategy.join(before, mean, server.slots[STRATEGY], received, share)
        shared = {**slots[SHARED], **values}
        shared |= {name: shared[first] for name, first in tied.items() if first in values}
        return server.advance(phase, {SHARED: shared, STRATEGY: own})

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the module itself, in the place of an encoder."""
        return Clusterer(self.module_for(server, None))

    def module_for(self, server: ServerState, state: Tensors | None) -> Any:
        """Return the module with the server's values and, if given, a client's own layers."""
        return self._loaded(server.slots, state or {})

    def _loaded(self, slots: Slots, kept: Tensors) -> Any:
        module = self._fresh()
        load_slots(module, {name: slots[name] for name in (SHARED, PERSONAL) if name in slots})
        own = {name: value for name, value in kept.items() if not name.startswith(_NOT_IN_MODULE)}
        load_tensors(module, own)
        return module

    def _local(self, module: Any, slots: Slots, state: Tensors) -> Local:
        """Return what a strategy needs at the start of a client's training."""
        start = {name: slots[SHARED][name] for name in _trained(module, slots[SHARED])}
        own = [name for name in state if name.startswith(_KEPT)]
        kept = {name.removeprefix(_KEPT): state[name] for name in own}
        return Local(start=start, server=slots.get(STRATEGY, {}), kept=kept)

    def _update(
        self, module: Any, before: Tensors, samples: int, local: Local
    ) -> tuple[dict[str, WeightedUpdate], dict[str, Tensor]]:
        """Return what the client sends, in the received dtypes, and what its strategy keeps."""
        strategy = self._strategy
        values = self._rules.slot(module, SHARED)
        found = strategy.finish(local, values)
        values |= found.values
        shared = {
            name: value.to(before[name].dtype) if name in before else value
            for name, value in values.items()
        }
        weight = 1 if strategy.equal else samples
        up = {SHARED: WeightedUpdate(weight=weight, tensors=shared)}
        if strategy.hears:
            up[STRATEGY] = WeightedUpdate(weight=weight, tensors=found.own)
        return up, {_KEPT + name: value for name, value in found.kept.items()}

    @property
    def clients_validate(self) -> bool:
        """Whether clients run `validation_step` on samples of their own."""
        return bool(self._config.holdout or self._config.own_validation)

    def _validates(self, round_: int) -> bool:
        every = self._config.validation_every
        if not self.clients_validate:
            return False
        return round_ == self.rounds or bool(every and round_ % every == 0)

    def _fresh(self) -> Any:
        """Return the module as it was given.

        Its attributes are those that no client has changed.
        """
        config = self._config
        if config._object is not None:
            return copy_of(config._object)
        if config.is_object or config.module is None:
            raise ConfigError(
                "method.module: it was an object of a Python program; go on from that program, "
                "with resume=True."
                if config.is_object
                else "module: none is given; set module=package.module:Class."
            )
        if self._built is None:
            self._built = build_module(config.module, config.arguments)
        return copy_of(self._built)

    def _check_personal(self, module: Any) -> None:
        names = [*module.state_dict()]
        for pattern in self._config.personal:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(
                    f"method.personal: {pattern} fits no layer; {layers_like(pattern, names)}"
                )


def _note(training: Training, on_schedules: str = "") -> str:
    """Return what a user should know of a client's training; "" if nothing."""
    return ". ".join(filter(None, [on_schedules, _DRAWN * training.logger.used]))


def _trained(module: Any, shared: Tensors) -> tuple[str, ...]:
    """Return the averaged parameters that are trained, each once."""
    named = module.named_parameters()
    return tuple(name for name, value in named if value.requires_grad and name in shared)


def _untrained(server: ServerState) -> frozenset[str]:
    """Return the averaged entries that training does not touch: buffers, frozen layers, EMAs."""
    names: Any = server.metadata["trained"]
    tied: Any = server.metadata["tied"]
    return frozenset(server.slots[SHARED]) - {*names, *tied}


def _tied(module: Any) -> dict[str, str]:
    """Return further names of shared parameters, each with the first name."""
    first = {value: name for name, value in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first[value] for name, value in every if first[value] != name}
