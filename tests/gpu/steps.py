"""Steps one after the other, each a process with a time limit; a failed one ends no other."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_GRACE_S = 90.0
"""Seconds that a step has after SIGINT, for its checkpoint."""


@dataclass(frozen=True)
class Step:
    """A process, and the seconds that it may take."""

    name: str
    command: tuple[str, ...]
    limit: float = float("inf")


@dataclass(frozen=True)
class Outcome:
    """How a step ended: "done", "failed", "out of time" or "not started"."""

    name: str
    result: str
    code: int | None
    seconds: float
    note: str


def run_steps(
    steps: Sequence[Step], until: float, folder: Path, environment: Mapping[str, str]
) -> list[Outcome]:
    """Run steps in order until a moment of `time.monotonic`.

    A step out of time gets SIGINT, after which a run writes a checkpoint, so that the same command
    goes on from there; its output is in `<folder>/<name>.log`.
    """
    return [_run(step, until, folder, environment) for step in steps]


def _run(step: Step, until: float, folder: Path, environment: Mapping[str, str]) -> Outcome:
    began = time.monotonic()
    left = until - began
    if left <= 0:
        return Outcome(step.name, "not started", None, 0.0, "no time was left")
    log = folder / f"{step.name}.log"
    with log.open("ab") as file:
        try:
            process = subprocess.Popen(
                step.command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
                start_new_session=True,
            )
        except OSError as error:
            return Outcome(step.name, "failed", None, 0.0, str(error))
    code, late = _wait(process, min(left, step.limit))
    result = "out of time" if late else "done" if code == 0 else "failed"
    return Outcome(step.name, result, code, round(time.monotonic() - began, 1), _last_line(log))


def _wait(process: subprocess.Popen[bytes], limit: float) -> tuple[int, bool]:
    """The exit code, and whether the process had to be stopped."""
    try:
        return process.wait(limit), False
    except subprocess.TimeoutExpired:
        return _stop(process), True
    except KeyboardInterrupt:
        _stop(process)
        raise


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Interrupt a process, and after a while end it with all that it has started."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def table(outcomes: Sequence[Outcome]) -> str:
    """A Markdown table of the outcomes."""
    head = "| step | result | seconds | last line |\n| --- | --- | --- | --- |\n"
    return head + "\n".join(
        f"| {o.name} | {o.result} | {o.seconds:g} | {o.note.replace('|', '/')[:120]} |"
        for o in outcomes
    )


def plain(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """The outcomes as plain values."""
    return [asdict(outcome) for outcome in outcomes]
