"""Saving checkpoints in tests, with what does not matter there filled in."""

from coterie.checkpoints.checkpoint import save_checkpoint
from coterie.config.schema import CheckpointConfig


def save(folder, state, backend, tracking=None, **policy):
    best = policy.pop("marked_best", False)
    return save_checkpoint(
        folder,
        state,
        backend,
        tracking=tracking or {},
        config={},
        policy=CheckpointConfig(**policy),
        best=best,
    )
