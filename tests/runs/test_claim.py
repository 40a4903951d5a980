"""Two runs never write in one directory, and a dead one leaves no claim behind."""

import json
import multiprocessing
import os
import signal

import pytest

from coterie.commands.compose import compose
from coterie.errors import ConfigError
from coterie.jobs.train import main
from coterie.run.federation import Federation
from coterie.tracking.claim import claimed
from tests.builders.runs import COMMAND

FORK = multiprocessing.get_context("fork")


def hold(folder, held):
    with claimed(folder):
        held.set()
        signal.pause()


@pytest.fixture
def holder(tmp_path):
    held = FORK.Event()
    process = FORK.Process(target=hold, args=(tmp_path, held), daemon=True)
    process.start()
    assert held.wait(20)
    yield process
    process.kill()
    process.join()


def test_a_claim_ends_with_its_process_however_it_ends(tmp_path, holder):
    with pytest.raises(ConfigError) as caught, claimed(tmp_path):
        pass
    assert str(caught.value) == (
        f"run_dir={tmp_path}: another run (process {holder.pid}) writes in it; wait for it or "
        "choose another folder."
    )
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with claimed(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    with claimed(tmp_path):
        pass


@pytest.mark.parametrize("resume", ["true", "false"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_second_run_is_refused_and_touches_nothing(tmp_path, holder, capsys, resume, begun):
    if begun:
        (tmp_path / "config.yaml").write_text("seed: 0\n")
    assert main([*COMMAND, f"run_dir={tmp_path}", f"resume={resume}"]) == 2
    error = capsys.readouterr().err
    assert f"another run (process {holder.pid}) writes in it; wait for it" in error
    assert error.count("\n") == 1
    assert {p.name for p in tmp_path.iterdir()} == {".lock", *(["config.yaml"] if begun else [])}


def test_a_run_holds_its_directory_until_it_ends(tmp_path):
    folder, sentences = tmp_path / "run", []

    class Intrudes:
        def __getattr__(self, name):
            return lambda *args, **kwargs: None

        def phase_finished(self, record):
            with pytest.raises(ConfigError) as caught:
                Federation(compose(*COMMAND, f"run_dir={folder}", "resume=true")).run()
            sentences.append(str(caught.value))

    Federation(compose(*COMMAND, f"run_dir={folder}"), view=Intrudes()).run()
    assert len(sentences) == 2
    assert all(f"(process {os.getpid()}) writes in it" in sentence for sentence in sentences)
    assert json.loads((folder / "summary.json").read_text())["status"] == "completed"
    assert main([*COMMAND, f"run_dir={folder}", "resume=true"]) == 0


def test_a_refused_run_leaves_a_folder_that_was_there_empty(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    assert main([*COMMAND, f"run_dir={folder}", "precision=16-mixed"]) == 2
    assert list(folder.iterdir()) == []
