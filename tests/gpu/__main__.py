"""Everything that a machine with GPUs is good for, in one command of 40 minutes: `make gpu`.

    python -m tests.gpu device=cuda scale=paper minutes=40 out=runs/gpu

Tests on the device, throughput, clients that share a GPU, many small clients in several ways,
clustering, then cells of the papers' studies in order of worth until the time is over. It needs no
network, and no Ray: without it clients run in one process. The same command goes on where it was
stopped. `out` then has a log of each step, `throughput.csv`, `sharing.csv`, `many_clients.csv`,
`clustering.csv`, `results/` with the studies' files, and `summary.json`. Data is read from
COTERIE_DATA.
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Literal

from pydantic import PositiveFloat

from coterie.commands.arguments import read_values
from coterie.config.component import Component
from coterie.config.loading import load_component
from coterie.tracking.environment import commit, environment
from tests.gpu.steps import Outcome, Step, plain, run_steps, table

ROOT = Path(__file__).resolve().parents[2]
STUDIES = {
    "fedmcc_1": ("rows=[FedMCC]", "columns=[CIFAR-10,MNIST]"),
    "ccfc_1": (
        "rows=[CCFC]",
        "columns=['MNIST p=0','MNIST p=0.5','MNIST p=1','Fashion-MNIST p=0']",
    ),
    "orchestra_1": ("columns=[CIFAR-10]",),
}
"""Studies in order of worth, and their cells at the paper's sizes."""
FEW = "k_means or (cpu and fedmcc) or (own_bits and ccfc) or ccfc-1"
"""The tests at the scale smoke."""
MEASURED = ("throughput", "sharing", "many_clients", "clustering")
"""Modules of this room, each a table."""
SHARES = {"tests": 0.2, **dict.fromkeys(MEASURED, 0.1), "fedmcc_1": 0.2, "ccfc_1": 0.1}
"""Parts of the time that steps may take; the last has what is left."""


class Session(Component):
    """What to do."""

    device: Literal["cuda", "cpu"] = "cuda"
    scale: Literal["paper", "smoke"] = "paper"
    minutes: PositiveFloat = 40.0
    out: str = "runs/gpu"


def marked() -> list[str]:
    """The files with tests of the device; to import all others takes minutes."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path) for path in files if "mark.gpu" in path.read_text(encoding="utf-8")]


def steps(session: Session, out: Path) -> list[Step]:
    """The steps in order."""
    python, seconds = sys.executable, 60 * session.minutes
    chosen = () if session.scale == "paper" else ("-k", FEW)
    tests = (python, "-m", "pytest", "-q", "-m", "gpu", *marked(), *chosen)
    own = (f"device={session.device}", f"scale={session.scale}", f"out={out}")
    found: list[tuple[str, tuple[str, ...]]] = [("tests", tests)]
    found += [(name, (python, "-m", f"tests.gpu.{name}", *own)) for name in MEASURED]
    more = [f"accelerator={session.device}", "checkpoint.every=1"]
    if session.device == "cpu" or importlib.util.find_spec("ray") is None:
        more.append("cluster=serial")
    for name, cells in STUDIES.items():
        command = [python, "-m", "coterie.jobs.study", f"study={name}", f"scale={session.scale}"]
        command += [f"out={out / name}", f"results={out / 'results'}", *more]
        command += [*cells, "seeds=[0]"] if session.scale == "paper" else []
        found.append((name, tuple(command)))
    return [Step(name, command, SHARES.get(name, 1.0) * seconds) for name, command in found]


def write_summary(outcomes: list[Outcome], session: Session, out: Path) -> None:
    """Write `summary.json`, and the table to the standard output."""
    content = {
        "session": session.model_dump(),
        "commit": commit(),
        "steps": plain(outcomes),
        **environment(),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (out / "summary.json").write_text(f"{text}\n", encoding="utf-8")
    files = "".join(f"\n{path}" for path in sorted(out.glob("*.csv")) + sorted(out.glob("*/*.csv")))
    sys.stdout.write(f"\n{table(outcomes)}\n{files}\n{out / 'summary.json'}\n")


def main(arguments: list[str]) -> int:
    session = load_component(Session, read_values(arguments))
    until = time.monotonic() + 60 * session.minutes
    out = Path(session.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    here = {"COTERIE_DEVICE": session.device}
    here["PYTHONPATH"] = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
    outcomes: list[Outcome] = []
    for step in steps(session, out):
        sys.stdout.write(f"{step.name}: {' '.join(step.command)}\n")
        sys.stdout.flush()
        outcomes += run_steps([step], until, out, here)
        write_summary(outcomes, session, out)
    return int(any(outcome.result == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
