"""Trials with damaged files: each is read, or refused in one sentence."""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random

import yaml

from coterie import load_model
from coterie.commands import train
from coterie.errors import CoterieError
from coterie.jobs import audit, evaluate, export, predict, relevance, report, show
from tests.builders.every_method import small
from tests.builders.runs import SERIAL
from tests.chaos.trial import Trial
from tests.property import test_hostile_data as data

SECTIONS = ("data", "encoder", "augmentation", "partition", "method", "tracking", "cluster")
VALUES = (None, 3, -1.5, [1], "text", True, {}, {"target": 3}, {"target": "torch.nn:Linear"})
DIGITS = ("experiment=kmeans_digits", "data.limit=60", *SERIAL)
READERS: Mapping[str, Callable[[Path], object]] = {
    "evaluate": lambda run: evaluate.main([f"run={run}", "evaluation.figures=false"]),
    "resume": lambda run: train.main(["resume=true", f"run_dir={run}"]),
    "report": lambda run: report.main([f"run={run}"]),
    "predict": lambda run: predict.main(
        [f"model={run}", f"input={run.parent / 'x.npy'}", f"output={run.parent / 'out.csv'}"]
    ),
    "audit": lambda run: audit.main([f"run={run}", "samples=50"]),
    "export": lambda run: export.main([f"model={run}", "format=pt2"]),
    "pretrained": lambda run: train.main(
        [*DIGITS, "encoder=pretrained", f"encoder.path={run}", f"run_dir={run.parent / 'on'}"]
    ),
    "relevance": lambda run: relevance.main([f"pretrained={run}", "samples=50", *DIGITS]),
    "show": lambda run: show.main([f"run={run}", "pictures=3", "samples=50"]),
    "load": load_model,
}


def finished(folder: Path, method: str) -> Path:
    """A small finished run of the method, the same for all trials."""
    run = folder / f"finished-{method}"
    if not (run / "summary.json").exists():
        assert train.main([*small(method), *SERIAL, "checkpoint.every=1", f"run_dir={run}"]) == 0
    return run


def damaged(content: bytes, draw: Random) -> bytes:
    """A few bytes changed, or the end cut off."""
    changed = bytearray(content)
    for _ in range(draw.choice((0, 1, 1, 2, 8)) if changed else 0):
        start = draw.randrange(len(changed))
        changed[start : start + draw.randint(1, 6)] = draw.randbytes(draw.randint(1, 6))
    return bytes(changed[: draw.randrange(len(changed) + 1)] if draw.random() < 0.3 else changed)


def ended(read: Callable[[], object]) -> str:
    """How reading ended; raises whatever is no refusal."""
    try:
        code = read()
    except CoterieError as error:
        if error.exit_code != 2 or "\n" in str(error):
            raise
        return "refused"
    return {0: "read", 3: "read", 2: "refused", 1: "failed in a sentence"}.get(
        code if isinstance(code, int) else 0, "WRONG: another code"
    )


def data_file(trial: Trial) -> str:
    """A file of samples."""
    name = trial.draw.choice(sorted(data.FILES))
    path = trial.folder / name
    path.write_bytes(damaged(data.FILES[name], trial.draw))
    return ended(partial(data.read, path))


def run_file(trial: Trial) -> str:
    """A file of a run, whichever command reads it."""
    run, draw = _copy(trial), trial.draw
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    path = draw.choice(files)
    path.write_bytes(damaged(path.read_bytes(), draw))
    return _read(run, draw)


def stored_config(trial: Trial) -> str:
    """A section of a run's config that is none."""
    run, draw = _copy(trial), trial.draw
    section, value = draw.choice(SECTIONS), draw.choice(VALUES)
    for path in (run / "config.yaml", run / "model" / "config.yaml"):
        values = yaml.safe_load(path.read_text())
        values.pop(section)
        path.write_text(yaml.safe_dump(values | ({} if value == {} else {section: value})))
    return _read(run, draw)


def _copy(trial: Trial) -> Path:
    import numpy as np

    np.save(trial.folder / "x.npy", np.zeros((3, 8, 8), np.uint8))
    whole = finished(trial.folder.parent, trial.method)
    return Path(shutil.copytree(whole, trial.folder / "run", dirs_exist_ok=True))


def _read(run: Path, draw: Random) -> str:
    reader = draw.choice(sorted(READERS))
    return ended(partial(READERS[reader], run))


FILES = {"data_file": data_file, "run_file": run_file, "stored_config": stored_config}
