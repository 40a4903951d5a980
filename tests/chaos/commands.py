"""A command on a local Ray of which a process is killed at any moment."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
from safetensors.torch import load_file

from tests.builders.runs import SMALL

_KEYS = (
    *SMALL,
    "executor=bare",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
)
_LONG = ("method.representation_epochs=20", "method.clustering_epochs=20")
_ON_RAY = "cluster.num_actors=2"
_LIMIT_S = 550
_PROMISED_S = 15
_DUMP = re.compile(r"Traceback|^\[\d{4}-\d\d-\d\d |^\*\*\* |StackTrace|core_worker", re.MULTILINE)
"""What Python's and Ray's own messages look like."""
_SIGNS = {
    "gcs_server": "/gcs_server ",
    "raylet": "/raylet ",
    "keeper": "coterie.distributed.head_process",
    "agent of the node": "ray::DashboardAgent",
    "agent of environments": "ray::RuntimeEnvAgent",
    "actor": "ray::ClientActor",
}
"""Process to a part of its command line."""
KILLED = (*_SIGNS, "fork server")


def killed(what: str, draw: Random, folder: Path) -> str:
    """Kill a process of a command at a random moment, and go on with the run if it has ended."""
    expected, seconds = _undisturbed(folder.parent)
    moment, run_dir = draw.uniform(0.0, seconds), folder / "run"
    with (folder / "log").open("wb") as log:
        command = _start(run_dir, log, _ON_RAY)
        time.sleep(moment)
        hit = _kill(what, command)
        began = time.monotonic()
        code = command.wait(_LIMIT_S)
    took = time.monotonic() - began
    ended = _told(code, (folder / "log").read_text(errors="replace"), what)
    if code:
        with (folder / "resumed").open("wb") as log:
            assert _start(run_dir, log, "cluster=serial").wait(_LIMIT_S) == 0
    if _left(run_dir) != expected:
        return f"WRONG: other bits ({what} after {moment:.1f} s)"
    if not hit:
        return "over before"
    return ended if not code else f"{ended} {'within' if took < _PROMISED_S else 'after'} 15 s"


def _start(run_dir: Path, log: object, *keys: str) -> "subprocess.Popen[bytes]":
    arguments = (*_KEYS, *_LONG, *keys, f"run_dir={run_dir}", "resume=true")
    return subprocess.Popen(
        [sys.executable, "-m", "coterie.jobs.train", *arguments],
        stdout=log,  # type: ignore[call-overload]
        stderr=subprocess.STDOUT,
    )


def timed(run_dir: Path, work: Callable[[], object]) -> float:
    """Seconds that a run takes; trials are apart, so the first one writes them beside the run."""
    told = run_dir.with_suffix(".seconds")
    if not told.exists():
        began = time.monotonic()
        work()
        told.write_text(str(time.monotonic() - began))
    return float(told.read_text())


def _undisturbed(folder: Path) -> tuple[dict[str, bytes], float]:
    """What the run leaves when nothing disturbs it, and how long it takes."""
    seconds = timed(folder / "whole", lambda: _whole(folder))
    return _left(folder / "whole"), seconds


def _whole(folder: Path) -> None:
    with (folder / "whole.log").open("wb") as log:
        assert _start(folder / "whole", log, _ON_RAY).wait(_LIMIT_S) == 0


def _left(run_dir: Path) -> dict[str, bytes]:
    model = load_file(run_dir / "model" / "model.safetensors")
    clusters = {"clusters": (run_dir / "assignments.parquet").read_bytes()}
    return {name: value.numpy().tobytes() for name, value in model.items()} | clusters


def _kill(what: str, command: "subprocess.Popen[bytes]") -> bool:
    """Kill it as soon as it is there; whether it was before the command ended."""
    while command.poll() is None:
        for pid in _processes(what, command.pid):
            os.kill(pid, signal.SIGKILL)
            return True
        time.sleep(0.05)
    return False


def _processes(what: str, command: int) -> Iterator[int]:
    with suppress(psutil.NoSuchProcess):
        own = psutil.Process(command)
        for child in own.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                line = " ".join(child.cmdline()) + " "
                forked = child.ppid() == command and child.cmdline() == own.cmdline()
                if forked if what == "fork server" else _SIGNS[what] in line:
                    yield child.pid


def _told(code: int, log: str, what: str) -> str:
    """How the command ended; it is wrong if it does so in more than a sentence."""
    if what == "raylet" and code not in (0, 1, 3):
        return "ended by Ray, resumed,"
    if found := _DUMP.search(log):
        return f"WRONG: {what}: {log[found.start() :][:300]}"
    if code in (0, 3):
        return "went on"
    if code != 1 or not log.rstrip().endswith((".", "resume=true")):
        return f"WRONG: {what}: exit {code}: {log[-300:]}"
    return "told in a sentence, resumed,"
