"""Runs of small federations on any backend, compared to the bit."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from coterie import Federation
from coterie.commands.compose import compose
from coterie.execution.packing import unpack
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from coterie.run.federation import RunResult
from coterie.run.setup import assemble, make_backend
from tests.builders.observers import Silent

SMALL = (
    "experiment=fedmcc_digits",
    "data.limit=200",
    "encoder=mlp",
    "encoder.hidden=[32]",
    "encoder.features=16",
    "method.representation_rounds=2",
    "method.representation_epochs=1",
    "method.clustering_rounds=2",
    "method.clustering_epochs=1",
    "method.batch_size=32",
)
CCFC = (
    "experiment=ccfc_digits",
    "data.limit=200",
    "encoder=mlp",
    "encoder.hidden=[32]",
    "encoder.features=16",
    "method.warmup_rounds=1",
    "method.rounds=2",
    "method.batch_size=16",
    "method.keep_optimizer=true",
)
COMMAND = (
    "experiment=fedmcc_digits",
    "cluster=serial",
    "executor=bare",
    "data.limit=100",
    "encoder=mlp",
    "encoder.hidden=[16]",
    "encoder.features=8",
    "method.representation_rounds=1",
    "method.representation_epochs=1",
    "method.clustering_rounds=1",
    "method.clustering_epochs=1",
    "method.batch_size=16",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
    "evaluation.kmeans_baseline=false",
    "tracking.progress=none",
)
"""A run of a moment from the command line, in this process, without extras."""
SERIAL = (
    "cluster=serial",
    "executor=bare",
    *(key for key in COMMAND if key.startswith(("evaluation.", "tracking."))),
)
"""Any run in this process, without extras."""
TINY = (
    "experiment=fedmcc_digits",
    "cluster=serial",
    "data.limit=200",
    "encoder.width=8",
    "encoder.features=16",
    "method.cluster_heads=2",
    "method.representation_rounds=2",
    "method.representation_epochs=1",
    "method.clustering_rounds=2",
    "method.clustering_epochs=1",
    "evaluation.every=0",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
    "evaluation.kmeans_baseline=false",
    "tracking.progress=none",
)


WITHOUT_CLUSTERS = ("method.clustering_rounds=0",)
"""FedMCC without its second stage: its clusters are those of k-means."""


@dataclass
class Ran:
    server: dict
    states: dict
    ledger: tuple
    failures: list = field(default_factory=list)
    dropped: int = 0
    peer_messages: dict = field(default_factory=dict)
    phases: int = 0


def run(*overrides, hook=None, base=SMALL):
    """Run `base` to the end; `hook(backend, phase)` is called before each phase."""
    assembly = assemble(compose(*base, *overrides))
    backend = make_backend(assembly.workload, lambda: None)
    try:
        state = RunState(server=assembly.server)
        if hook:
            hook(backend, 0)
        commit = (lambda s, c: hook(backend, s.phases)) if hook else (lambda s, c: None)
        Loop(assembly.method, backend, assembly.workload, Silent(), commit).run(state)
        states = fetched(backend, state.states)
        peer_messages = {
            f"{by} to {to}": message
            for to, messages in state.peer_messages.items()
            for by, message in fetched(backend, messages).items()
        }
        ledger = (state.ledger.down, state.ledger.up, state.ledger.peer, state.ledger.items)
        known = state.failures, state.dropped
        return Ran(state.server.slots, states, ledger, *known, peer_messages, state.phases)
    finally:
        backend.close()


def fetched(backend, handles):
    """The tensors behind handles, copied."""
    found = {key: unpack(backend.fetch(handle)) for key, handle in sorted(handles.items())}
    return {key: {k: v.clone() for k, v in tensors.items()} for key, tensors in found.items()}


def assert_same(a, b):
    assert a.ledger == b.ledger
    for one, other in (
        (a.server, b.server),
        (a.states, b.states),
        (a.peer_messages, b.peer_messages),
    ):
        assert one.keys() == other.keys()
        for key in one:
            assert one[key].keys() == other[key].keys()
            for name in one[key]:
                assert torch.equal(one[key][name], other[key][name]), (key, name)


def model_files(folder: Path) -> dict[str, bytes]:
    """The bytes of the model's tensors by file."""
    files = sorted((folder / "model").rglob("*.safetensors"))
    assert files
    return {file.name: file.read_bytes() for file in files}


def train(folder: Path, *overrides: str) -> RunResult:
    return Federation(compose(*TINY, *overrides, f"run_dir={folder}")).run()
