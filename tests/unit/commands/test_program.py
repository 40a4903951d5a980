"""How a command's process begins and ends: without waiting for what is not needed."""

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

from coterie.commands.program import run_command
from coterie.errors import DataError

JOBS = Path(__file__).resolve().parents[3] / "ray_jobs"


def _program(body):
    """What a process gave whose command is this body."""
    code = "import atexit, logging, sys, threading, time\n"
    code += "from coterie.commands.program import run_program\n"
    code += textwrap.dedent(body) + "\nrun_program(main)\n"
    # What an unbuffered stream wrote would be there without a flush.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-c", code, "a", "b"],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_exit_code_is_the_commands():
    done = _program("def main(arguments): return len(arguments) + 1")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_threads_handlers_logs_and_streams_are_finished_in_their_order():
    done = _program("""
        def main(arguments):
            logging.getLogger().addHandler(Late())
            atexit.register(lambda: sys.stdout.write("handler "))
            threading.Thread(target=late).start()
            sys.stdout.write("main ")
            return 0

        def late():
            time.sleep(0.3)
            sys.stdout.write("thread ")

        class Late(logging.Handler):
            def close(self):
                sys.stdout.write("log")
                super().close()
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "main thread handler log", "")


def test_the_package_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "--version"], check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith("coterie ")


def test_a_thread_that_goes_on_is_told():
    done = _program("""
        from coterie.commands import program

        def main(arguments):
            program._PATIENCE_S = 0.1
            threading.Thread(target=time.sleep, args=(1.0,), name="late").start()
            threading.Thread(target=time.sleep, args=(60.0,), daemon=True).start()
            return 3
    """)
    assert done.returncode == 3
    assert (
        "The command is done, but code that it has loaded still runs (thread late);" in done.stderr
    )


def test_modules_are_not_taken_apart():
    done = _program("""
        class Slow:
            def __del__(self):
                sys.stdout.write("taken apart")

        slow = Slow()
        sys.modules["slow"] = slow
        def main(arguments): return 0
    """)
    assert (done.returncode, done.stdout) == (0, "")


def test_an_error_of_a_library_is_told_in_its_own_words(capsys):
    def hub(arguments):
        raise OSError("We cannot reach the hub.")

    assert run_command(hub, [], lambda: "") == 1
    assert capsys.readouterr().err == "OSError: We cannot reach the hub.\n"


def test_an_error_ends_the_process_as_ever():
    done = _program("def main(arguments): raise ValueError('broken')")
    assert done.returncode == 1
    assert "ValueError: broken" in done.stderr


@pytest.mark.parametrize(
    ("argument", "answer"),
    [
        ("tracking.progress=plain", "did you mean lines?"),
        ("method.epoch=1", "did you mean method.epochs?"),
        ("evaluation.colour=1", "--help lists the keys of evaluation."),
        ("partition.clients=none", "a whole number"),
        ("data=class_folders data.path=/nowhere", "data.path=/nowhere: there is no such file"),
    ],
)
def test_a_refusal_comes_before_pytorch_is_imported(argument, answer):
    code = (
        "import sys\nfrom coterie.jobs.train import main\n"
        f"code = main(['experiment=fedavg_digits', *'{argument}'.split()])\n"
        "sys.exit(code + 10 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert answer in done.stderr


HELPS = """
import sys
from importlib import import_module
for line in sys.argv[1:]:
    command, *rest = line.split()
    code = import_module(f"coterie.jobs.{command}").main(rest)
    if code or "torch" in sys.modules:
        sys.exit(f"{line}: {code}, {'torch' in sys.modules}")
"""


def test_help_comes_without_pytorch():
    lines = (
        "train --help experiment=fedmcc_digits",
        "train --help experiment=lightning",
        "train --help encoder=conv3",
        *(f"{path.stem} --help" for path in sorted(JOBS.glob("[a-z]*.py"))),
    )
    command = [sys.executable, "-c", HELPS, *lines]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_that_the_locale_lacks_is_no_fault_of_its_name():
    ascii_shell = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    arguments = "train experiment=kmeans data=class_folders data.path=/nowhére"
    done = subprocess.run(
        [sys.executable, "-m", "coterie.jobs", *arguments.split()],
        env={**os.environ, **ascii_shell},
        check=False,
        capture_output=True,
    )
    assert done.returncode == 2
    assert done.stderr.endswith(b"locale lacks some of its signs; set LC_ALL=C.UTF-8.\n")


def test_ctrl_c_before_the_rounds_is_no_traceback(capsys):
    def command(_: object) -> int:
        raise KeyboardInterrupt

    assert run_command(command, [], lambda: "") == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def test_code_that_exits_with_0_while_it_is_loaded_has_failed(capsys):
    def command(arguments):
        sys.exit(0)

    assert run_command(command, [], str) == 1
    assert capsys.readouterr().err == "Code that was loaded called sys.exit (0); correct it.\n"


def test_an_error_cannot_steer_the_terminal(capsys):
    def command(_: object) -> int:
        raise DataError("a\x1b[2Jb\x07.png is not a readable picture.")

    assert run_command(command, [], lambda: "") == 2
    assert capsys.readouterr().err == "a?[2Jb.png is not a readable picture.\n"


def test_what_a_library_warns_of_is_told_without_escapes(capsys, caplog):
    def warn(_):
        warnings.warn("unknown charset \x1b]0;mine\x07\nand another line", stacklevel=1)
        return 0

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = warnings.showwarning
        assert run_command(warn, (), str) == 0
        assert warnings.showwarning is before
    assert caplog.messages == ["unknown charset ?]0;mine?"]
    assert "charset" not in capsys.readouterr().err.replace(caplog.messages[0], "")


def test_a_name_with_a_line_break_begins_no_line():
    program = """
    import logging
    from coterie.commands.program import run_command
    from coterie.errors import DataError

    def command(arguments):
        logging.getLogger("coterie").warning("%s: it is empty.", "a\\nError: none\\rb")
        raise DataError("c\\ncompleted: no such file.")

    raise SystemExit(run_command(command, [], str))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        check=False,
        capture_output=True,
        text=True,
    )
    lines = done.stderr.splitlines()
    assert len(lines) == 2, done.stderr
    assert lines[0].rstrip().endswith("a Error: none b: it is empty.")
    assert lines[1] == "c completed: no such file."
