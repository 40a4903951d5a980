"""The losses of a small run, round by round."""

from typing import Any

import numpy as np

from coterie.commands.compose import compose
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from coterie.run.setup import assemble, make_backend
from tests.builders.observers import Silent


def curve(overrides: tuple[str, ...]) -> list[dict[str, Any]]:
    """Each round's stage and means over the clients."""
    assembly = assemble(compose(*overrides))
    backend = make_backend(assembly.workload, lambda: None)
    rounds: list[dict[str, Any]] = []

    def commit(_: RunState, done: Any) -> None:
        if "loss" not in done.phase.metrics:  # it trained nothing
            return
        results = [one.metrics for one in done.result.client_results]
        means = {name: float(np.mean([t[name] for t in results])) for name in sorted(results[0])}
        rounds.append({"round": done.phase.round, "stage": done.phase.stage, **means})

    sizes = {client: len(rows) for client, rows in enumerate(assembly.workload.parts)}
    state = RunState(server=assembly.method.init(sizes, 11))
    Loop(assembly.method, backend, assembly.workload, Silent(), commit).run(state)
    return rounds
