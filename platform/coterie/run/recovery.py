"""Where a run begins, and where it goes back to when a node takes clients' states with it."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.checkpoints.checkpoint import Loaded, has_checkpoint, load_checkpoint
from coterie.config.loading import dump_config
from coterie.config.schema import RunConfig
from coterie.contract.observer import Observer
from coterie.contract.phase import ServerState
from coterie.errors import ConfigError, RunError, StateLostError
from coterie.execution.backend import Backend
from coterie.rounds.state import RunState
from coterie.run.recorder import Recorder

_logger = logging.getLogger(__name__)

_FREE = frozenset({
    "experiment", "run_dir", "resume", "executor", "accelerator",
    "cluster", "faults", "evaluation", "checkpoint", "tracking",
    "data.root", "data.path", "data.download",
})  # fmt: skip
"""What a resumed run may change: it decides where and how it runs, not what it gives."""
_BOUND = frozenset({"cluster.threads_per_client"})
"""What it may not change in these sections: with other threads sums round otherwise."""
_IN_ORDER = "data.clients"
"""A mapping whose order counts: clients are numbered in it."""
_MAX_RECOVERIES = 3
_MISSING = object()


@dataclass
class Recovery:
    """Gives a run's state from its checkpoints.

    Attributes:
        config: The run's config.
        start: The method's state before the first phase.
        checkpoints: The run's `checkpoints/`.
        backend: Where the clients' states go.
        recorder: Goes back with the run: its metrics and curves.
        view: Is told.
    """

    config: RunConfig
    start: ServerState
    checkpoints: Path
    backend: Backend
    recorder: Recorder
    view: Observer
    _furthest: int = -1
    _in_vain: int = 0

    def begin(self) -> RunState:
        """The state to start from: under `resume`, the last whole checkpoint's if there is one.

        Raises:
            ConfigError: If the checkpoint is of a run with another config.
            DataError: If none can be read.
        """
        if not self.config.resume:
            return RunState(server=self.start)
        state = self._back()
        if state.phases:
            self.view.note(f"Resumed after round {state.server.round}.")
        else:
            self.view.note(f"Nothing to resume in {self.checkpoints}: the run starts anew.")
        return state

    def recover(self, state: RunState, lost: StateLostError) -> None:
        """Bring a run whose clients' states are lost back to where it can go on, in place.

        Under `rewind` all of it goes back to the last checkpoint, or to the start; under `stale`
        only the lost clients do.

        Raises:
            RunError: If states are lost again and again without a phase in between.
        """
        self._in_vain = 0 if state.phases > self._furthest else self._in_vain + 1
        self._furthest = max(self._furthest, state.phases)
        if self._in_vain >= _MAX_RECOVERIES:
            raise RunError(f"Clients' states were lost {_MAX_RECOVERIES} times in a row; look at "
                           "the nodes and at Ray's object store.") from lost  # fmt: skip
        self.recorder.writer.wait()
        stale = self.config.faults.on_state_loss == "stale"
        clients = self._all_lost(state, lost)
        before = f"round {state.server.round + 1}: the states of clients {clients} were lost"
        if stale:
            loaded = self._load()
            _take_over(state, loaded.state if loaded else RunState(server=self.start), clients)
            then = f"they go on from those of round {loaded.state.server.round if loaded else 0}"
        else:
            failures = state.failures
            state.become(self._back())
            state.failures = failures
            then = f"the run went back to the end of round {state.server.round}"
        state.failures.append(f"{before} with their node; {then}")
        self.view.note(f"{state.failures[-1]}.")

    def _all_lost(self, state: RunState, lost: StateLostError) -> list[int]:
        """The clients whose state or mail cannot be read any more."""
        clients = set(lost.clients)
        for client in state.states.keys() | state.mail.keys():
            own = [state.states[client]] if client in state.states else []
            for handle in [*own, *state.mail.get(client, {}).values()]:
                try:
                    self.backend.fetch(handle)
                except StateLostError:
                    clients.add(client)
        return sorted(clients)

    def _back(self) -> RunState:
        """The last checkpoint's state or the start's, the metrics cut back to it."""
        loaded = self._load()
        self.recorder.rewind(loaded.tracking if loaded else None)
        return loaded.state if loaded else RunState(server=self.start)

    def _load(self) -> Loaded | None:
        if not has_checkpoint(self.checkpoints):
            return None
        loaded = load_checkpoint(self.checkpoints, self.backend)
        for sentence in loaded.damaged:
            self.view.note(sentence)
        check_same_run(loaded.config, self.config)
        if loaded.config["checkpoint"]["best"] != self.config.checkpoint.best:
            loaded.state.best = None  # by another metric
        return loaded


def check_same_run(stored: Mapping[str, Any], config: RunConfig) -> str:
    """Refuse to resume a checkpoint of a run that would have given other bits.

    Args:
        stored: The run's config as plain values.
        config: The one it is to go on with. It may be longer, by the keys that its method says.

    Returns:
        What makes it longer, as a sentence; "" if nothing does.

    Raises:
        ConfigError: Naming the first key that differs.
    """
    then, now = _flat(stored), _flat(dump_config(config))
    longer = []
    for key in sorted(then.keys() | now.keys(), key=lambda key: (not key.endswith(".target"), key)):
        if then.get(key, _MISSING) != now.get(key, _MISSING):
            if _raised(key, then, now, config):
                longer.append(f"{key} rises from {then[key]} to {now[key]}")
                continue
            was, is_ = (f"{key}={d[key]}" if key in d else f"no {key}" for d in (then, now))
            raise ConfigError(
                f"resume=true: the checkpoint's run had {was}, this one has {is_}; give the same "
                "config, or another run_dir."
            )
    return f"{', '.join(longer)}." if longer else ""


def _raised(key: str, then: Mapping[str, Any], now: Mapping[str, Any], config: RunConfig) -> bool:
    """Whether a key is a number that makes the run longer, and is larger now."""
    section, _, name = key.partition(".")
    before = then.get(key)
    extends = section == "method" and name in config.method.extensible
    return extends and isinstance(before, int) and now[key] > before


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key to value, of the keys that decide a run's bits."""
    flat: dict[str, Any] = {}
    for section, value in config.items():
        leaves = value if isinstance(value, Mapping) else {"": value}
        for leaf, inner in leaves.items():
            key = f"{section}.{leaf}" if leaf else section
            if key in _BOUND or not {section, key} & _FREE:
                flat[key] = _plain([*inner.items()] if key == _IN_ORDER else inner)
    return flat


def _plain(value: Any) -> Any:
    """As JSON gives it back: tuples become lists."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _take_over(state: RunState, former: RunState, clients: list[int]) -> None:
    """Give these clients the state and mail that they had in a former state of the run."""
    for mine, theirs in ((state.states, former.states), (state.mail, former.mail)):
        for client in clients:
            mine.pop(client, None)
            if client in theirs:
                mine[client] = theirs[client]
