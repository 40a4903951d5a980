"""What a checkpoint writes where many clients took part before and a thousand change a round."""

import tempfile
import time
from pathlib import Path

import numpy as np

from coterie.checkpoints.checkpoint import STATES, save_checkpoint
from coterie.checkpoints.state_files import StateFiles
from coterie.config.schema import CheckpointConfig
from coterie.contract.phase import ServerState
from coterie.execution.serial import SerialBackend
from coterie.rounds.accounts import ClientAccount
from coterie.rounds.state import RunState

TITLE = "Checkpoints of very many clients without a state, 1,000 of them in a round"
CLIENTS = (10_000, 100_000, 1_000_000)
LATER = 6


def take_part(state, clients, round_):
    state.server = ServerState(round=round_, slots={}, metadata={})
    state.ledger.offer(clients, {"encoder": (f"{round_:032x}", 8)})
    state.accounts |= {
        c: ClientAccount(tasks=round_, loss=0.1 * c, seconds=0.123456789, up=8) for c in clients
    }


def measure(clients):
    """MB written, CPU seconds of the copy, and of the writing, by checkpoint."""
    draw, found = np.random.default_rng(0), []
    with tempfile.TemporaryDirectory() as name:
        folder, state = Path(name), RunState(server=ServerState(round=0, slots={}))
        states = StateFiles(folder / STATES, SerialBackend)
        for round_ in range(1, LATER + 2):
            some = draw.choice(clients, 1000, replace=False).tolist()
            take_part(state, range(clients) if round_ == 1 else some, round_)
            before, begun = set((folder / STATES).glob("*")), time.process_time()
            copy, copied = state.snapshot(), time.process_time()
            keep = CheckpointConfig(keep=2)
            options = {"tracking": {}, "config": {}, "policy": keep, "states": states}
            path = save_checkpoint(folder, copy, SerialBackend, **options)
            new = [path / "run.json", *(set((folder / STATES).glob("*")) - before)]
            size = sum(file.stat().st_size for file in new) / 1e6
            found.append((size, copied - begun, time.process_time() - copied))
    return found


def table():
    lines = [
        "| clients that took part | first, MB | later ones, MB | CPU s to write | CPU s to copy |",
        "| --- | --- | --- | --- | --- |",
    ]
    for clients in CLIENTS:
        (first, _, _), *later = measure(clients)
        sizes, copies, writes = zip(*later, strict=True)
        lines.append(
            f"| {clients:,} | {first:.1f} | {min(sizes):.2f} to {max(sizes):.2f} "
            f"| {min(writes):.2f} to {max(writes):.2f} | {min(copies):.3f} to {max(copies):.3f} |"
        )
    return "\n".join(lines)
