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
from coterie.jobs import audit, evaluate, export, predict, report
from tests.builders.runs import train as train_small
from tests.property import test_hostile_data as data

SECTIONS = ("data", "encoder", "augmentation", "partition", "method", "tracking", "cluster")
VALUES = (None, 3, -1.5, [1], "text", True, {}, {"target": 3}, {"target": "torch.nn:Linear"})
PRETRAINED = (
    *("experiment=kmeans", "data=digits", "data.limit=60", "encoder=pretrained"),
    *("cluster=serial", "tracking.progress=none", "evaluation.figures=false"),
    *("evaluation.linear_probe=false", "evaluation.knn=false", "method.iterations=1"),
)
READERS: Mapping[str, Callable[[Path], object]] = {
    "evaluate": lambda run: evaluate.main([f"run={run}", "evaluation.figures=false"]),
    "resume": lambda run: train.main(["resume=true", f"run_dir={run}"]),
    "report": lambda run: report.main([f"run={run}"]),
    "predict": lambda run: predict.main(
        [f"model={run}", f"input={run.parent / 'x.npy'}", f"output={run.parent / 'out.csv'}"]
    ),
    "audit": lambda run: audit.main([f"run={run}", "samples=50"]),
    "export": lambda run: export.main([f"model={run}", "format=pt2"]),
    "pretrained": lambda run: train.main([*PRETRAINED, f"encoder.path={run}"]),
    "load": load_model,
}


def finished(folder: Path) -> Path:
    """A small finished run, the same for all trials."""
    run = folder / "finished"
    return run if (run / "summary.json").exists() else train_small(run).run_dir


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


def data_file(draw: Random, folder: Path) -> str:
    """A file of samples."""
    name = draw.choice(sorted(data.FILES))
    path = folder / name
    path.write_bytes(damaged(data.FILES[name], draw))
    return ended(partial(data.read, path))


def run_file(draw: Random, folder: Path) -> str:
    """A file of a run, whichever command reads it."""
    run = _copy(folder)
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    path = draw.choice(files)
    path.write_bytes(damaged(path.read_bytes(), draw))
    return _read(run, draw)


def stored_config(draw: Random, folder: Path) -> str:
    """A section of a run's config that is none."""
    run = _copy(folder)
    section, value = draw.choice(SECTIONS), draw.choice(VALUES)
    for path in (run / "config.yaml", run / "model" / "config.yaml"):
        values = yaml.safe_load(path.read_text())
        values.pop(section)
        path.write_text(yaml.safe_dump(values | ({} if value == {} else {section: value})))
    return _read(run, draw)


def _copy(folder: Path) -> Path:
    import numpy as np

    np.save(folder / "x.npy", np.zeros((3, 8, 8), np.uint8))
    return Path(shutil.copytree(finished(folder.parent), folder / "run", dirs_exist_ok=True))


def _read(run: Path, draw: Random) -> str:
    reader = draw.choice(sorted(READERS))
    return ended(partial(READERS[reader], run))


FILES = {"data_file": data_file, "run_file": run_file, "stored_config": stored_config}
