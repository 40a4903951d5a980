"""Names of checkpoints, and which to keep: the last, the best, and one of every m rounds."""

import re
from pathlib import Path

from coterie.config.plain_files import read_bytes
from coterie.config.schema import CheckpointConfig

_POINTER_BYTES = 1 << 10
_NAME = re.compile(r"round-(\d+)(?:-step-(\d+))?")


def checkpoint_name(round_: int, step: int) -> str:
    """Return the name `round-000010`, or `round-000010-step-002` within a round."""
    return f"round-{round_:06d}" + (f"-step-{step:03d}" if step else "")


def place_of(name: str) -> tuple[int, int]:
    """Return the (round, step) of a checkpoint's name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name}: not a checkpoint's name")
    return int(match[1]), int(match[2] or 0)


def checkpoints_in(folder: Path) -> list[str]:
    """Return the names of the complete checkpoints in a folder, newest first."""
    names = [path.name for path in folder.glob("round-*") if _NAME.fullmatch(path.name)]
    return sorted(names, key=place_of, reverse=True)


def pointed_to(folder: Path, pointer: str) -> str | None:
    """Return the checkpoint that the link `latest` or `best` names.

    None if the file is missing or damaged.
    """
    path = folder / pointer
    try:
        name = read_bytes(path, _POINTER_BYTES).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None
    return name if _NAME.fullmatch(name) else None


def superseded(folder: Path, written: str, config: CheckpointConfig) -> list[str]:
    """Return the checkpoints to delete once `written` is complete.

    Kept are `written`, the `keep` - 1 before it, every `keep_every`-th round's and the best. Those
    of later rounds precede a rewind of the run and are deleted.
    """
    names = checkpoints_in(folder)
    before = [name for name in names if place_of(name) < place_of(written)]
    stay = {written, *before[: config.keep - 1], pointed_to(folder, "best")}
    if config.keep_every:
        stay |= {name for name in before if _is_round(name, config.keep_every)}
    return [name for name in names if name not in stay]


def _is_round(name: str, every: int) -> bool:
    round_, step = place_of(name)
    return step == 0 and round_ % every == 0
