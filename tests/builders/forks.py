"""Programs in forks of one process that has imported PyTorch and Lightning.

A new Python imports them for seven seconds of CPU. It is for tests of how a program starts or ends;
the others run theirs here. What runs is the same, but for the options of the interpreter.
"""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import coterie.run.federation  # noqa: F401 - imported once, for all forks

# Not forks of the tests' own process: after some tests PyTorch has threads for gradients, which do
# not survive that.
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload([__name__])


def python(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float = 250
) -> subprocess.CompletedProcess[str]:
    """Run a program as `python *words` would, from a folder: `-m module …` or `file …`."""
    with TemporaryDirectory() as place:
        streams = [Path(place, name) for name in ("stdout", "stderr")]
        own = FORK.Process(target=_run, args=(words, folder, dict(environment), streams))
        own.start()
        own.join(timeout)
        if own.exitcode is None:
            own.kill()
            raise subprocess.TimeoutExpired(words, timeout)
        told = [stream.read_text(encoding="utf-8") for stream in streams]
    return subprocess.CompletedProcess(words, own.exitcode, *told)


def _run(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], streams: Sequence[Path]
) -> None:
    for number, stream in enumerate(streams, 1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    atexit._clear()
    first = str(folder) if words[0] == "-m" else str(Path(folder, words[0]).parent)
    sys.path[:] = [first, *environment.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
