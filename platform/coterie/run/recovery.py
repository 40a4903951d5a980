"""The state from which a run starts, and to which it returns when clients' states are lost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.checkpoints.checkpoint import Loaded, has_checkpoint, load_checkpoint
from coterie.config.schema import RunConfig
from coterie.contract.observer import Observer
from coterie.contract.phase import ServerState
from coterie.errors import RunError, StateLostError
from coterie.execution.backend import Backend
from coterie.rounds.state import RunState
from coterie.run.recorder import Recorder
from coterie.run.same_data import check_same_data, follow_clients
from coterie.run.same_run import check_same_run, other_callbacks

_MAX_RECOVERIES = 3


@dataclass
class Recovery:
    """Recovery of a run's state from its checkpoints.

    Attributes:
        start: The method's state before the first phase.
        checkpoints: The run's `checkpoints/`.
        backend: Stores clients' states.
        recorder: Its metrics and curves go back with the state.
        data: The fingerprint of the run's data.
    """

    config: RunConfig
    start: ServerState
    checkpoints: Path
    backend: Backend
    recorder: Recorder
    view: Observer
    data: Mapping[str, Any] = field(default_factory=dict)
    _furthest: int = -1
    _in_vain: int = 0

    def begin(self) -> RunState:
        """Return the state to start from; with `resume`, the last intact checkpoint's.

        Raises:
            ConfigError: If the checkpoint belongs to a run with another config.
            DataError: If no checkpoint can be read.
        """
        if not self.config.resume:
            return RunState(server=self.start)
        state = self._back()
        if state.phases:
            self.view.note(f"Resumed after round {state.server.round}.")
        else:
            self.view.note(
                f"Nothing to resume in {self.checkpoints}: the run starts from the beginning."
            )
        return state

    def recover(self, state: RunState, lost: StateLostError) -> None:
        """Replace the state, after clients' states were lost, by one that can continue.

        With `on_state_loss=rewind` the whole run goes back to the last checkpoint or to the start,
        with `stale` only the lost clients do.

        Raises:
            RunError: If states are lost several times without a phase completed in between.
        """
        self._in_vain = 0 if state.phases > self._furthest else self._in_vain + 1
        self._furthest = max(self._furthest, state.phases)
        if self._in_vain >= _MAX_RECOVERIES:
            raise RunError(
                f"Clients' states were lost {_MAX_RECOVERIES} times in a row; look at the nodes "
                "and at Ray's object store."
            ) from lost
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
        """Return the clients whose state or peer messages can no longer be read."""
        clients = set(lost.clients)
        for client in state.states.keys() | state.peer_messages.keys():
            own = [state.states[client]] if client in state.states else []
            for handle in [*own, *state.peer_messages.get(client, {}).values()]:
                try:
                    self.backend.fetch(handle)
                except StateLostError:
                    clients.add(client)
        return sorted(clients)

    def _back(self) -> RunState:
        """Return the last checkpoint's state or the start's, with metrics truncated to it."""
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
        self._compare_data(loaded)
        if other_callbacks(loaded.config, self.config):
            loaded.state.stopped = None  # by one that the user may have taken out
        if not self.config.checkpoint.judges_as(loaded.config):
            loaded.state.best = None  # the best value of another metric
        return loaded

    def _compare_data(self, loaded: Loaded) -> None:
        """Refuse data that the run did not begin with, unless the user accepts it."""
        if not (loaded.data and self.data):
            return
        accepted = self.config.accept_changed_data
        metadata = loaded.state.server.metadata
        changed = check_same_data(
            loaded.data, self.data, metadata, accepted=accepted, private=self._spends
        )
        if changed:
            follow_clients(loaded.state, loaded.data, self.data)
            after = f"after round {loaded.state.server.round}"
            sentence = f"the data was changed {after}, and this was accepted: {changed}"
            loaded.state.failures.append(sentence)
            self.view.note(f"{sentence}.")

    @property
    def _spends(self) -> bool:
        """Whether the run spends an ε, by noise on sums or by noise that clients add themselves."""
        first = self.recorder.method.next(self.start)
        by_clients = first is not None and first.epsilon is not None
        return by_clients or self.config.privacy.dp.clip is not None


def _take_over(state: RunState, former: RunState, clients: list[int]) -> None:
    """Give these clients the state and peer messages of an earlier state of the run."""
    for mine, theirs in (
        (state.states, former.states),
        (state.peer_messages, former.peer_messages),
    ):
        for client in clients:
            mine.pop(client, None)
            if client in theirs:
                mine[client] = theirs[client]
