"""`resume=true`: on a finished run, without a run, a folder or an experiment."""

import json
import shutil
from pathlib import Path

import pytest

from coterie import Federation
from coterie.checkpoints.integrity import unseal
from coterie.commands.compose import compose
from coterie.config.loading import dump_config, load_config
from coterie.contract.observer import PhaseRecord
from coterie.errors import ConfigError, InterruptedRunError
from coterie.jobs.partition import main as partition_main
from coterie.jobs.train import main
from coterie.run.recorder import Recorder
from coterie.run.same_run import check_same_run
from coterie.tracking.progress import Progress
from coterie.tracking.run_directory import RunDirectory
from tests.builders.observers import Silent
from tests.builders.runs import TINY


def train(folder, *overrides):
    """Run it; what the view was told."""
    view = Silent()
    Federation(compose(*TINY, f"run_dir={folder}", *overrides), view).run()
    return view.notes


def timeless(line):
    """A row of metrics.jsonl without its wall-clock times."""
    return {key: value for key, value in json.loads(line).items() if "seconds" not in key}


def test_a_finished_run_without_checkpoints_between_has_one_at_its_end(tmp_path):
    run_dir = tmp_path / "run"
    train(run_dir, "checkpoint.every=0")
    assert [path.name for path in (run_dir / "checkpoints").glob("round-*")] == ["round-000004"]
    rows = (run_dir / "metrics.jsonl").read_text().splitlines()
    notes = train(run_dir, "checkpoint.every=0", "resume=true")
    assert "Resumed after round 4." in notes
    again = (run_dir / "metrics.jsonl").read_text().splitlines()
    assert again[:-1] == rows[:-1]
    assert timeless(again[-1]) == timeless(rows[-1])
    assert json.loads((run_dir / "summary.json").read_text())["rounds"] == 4


def test_a_finished_run_is_measured_anew_where_that_changes(tmp_path):
    run_dir = tmp_path / "run"
    train(run_dir, "evaluation.kmeans_baseline=false")
    before = json.loads((run_dir / "summary.json").read_text())["metrics"]
    again = "resume=true", "evaluation.kmeans_baseline=true"
    changed = "Not as before: evaluation.kmeans_baseline changes from false to "
    assert any(note.startswith(changed) for note in train(run_dir, *again))
    after = json.loads((run_dir / "summary.json").read_text())["metrics"]
    assert set(after) - set(before) == {"kmeans_raw"}
    assert after["clustering"] == before["clustering"]
    assert RunDirectory(run_dir).read_config()["evaluation"]["kmeans_baseline"] is True
    assert not any(note.startswith("Not as before") for note in train(run_dir, *again))


def test_where_there_is_no_checkpoint_it_starts_and_says_so(tmp_path):
    run_dir = tmp_path / "run"
    anew = f"Nothing to resume in {run_dir}/checkpoints: the run starts from the beginning."
    assert anew in train(run_dir, "resume=true")  # pretrain and compare begin so
    rows = (run_dir / "metrics.jsonl").read_text().splitlines()
    shutil.rmtree(run_dir / "checkpoints")  # as if it had been stopped before the first one
    assert anew in train(run_dir, "resume=true")
    again = (run_dir / "metrics.jsonl").read_text().splitlines()
    assert [*map(timeless, again)] == [*map(timeless, rows)]


def test_without_a_folder_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_RUNS", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        Federation(compose(*TINY, "resume=true"), Silent()).run()
    assert str(caught.value) == (
        "resume=true: give the folder of the run to go on with as run_dir=DIR."
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "was"),
    [
        ("cluster.threads_per_client=2", "cluster.threads_per_client=1"),
        ("deterministic=false", "deterministic=True"),
    ],
)
def test_what_gives_other_bits_is_refused(changed, was):
    stored = dump_config(compose(*TINY))
    with pytest.raises(ConfigError, match=f"run had {was}, this one has "):
        check_same_run(stored, compose(*TINY, changed))


def test_where_it_runs_may_change():
    elsewhere = ("cluster.backend=ray", "cluster.num_actors=3", "executor=bare", "data.root=/else")
    changed = compose(*TINY, *elsewhere, "evaluation.every=3", "tracking.client_rows=1")
    assert check_same_run(dump_config(compose(*TINY)), changed) == ""


def test_another_split_in_the_same_file_is_refused(tmp_path):
    split = (*TINY, f"out={tmp_path}")
    assert partition_main([*split, "partition=iid"]) == 0
    kept = (*TINY, "partition=file", f"partition.path={tmp_path}/partition.parquet")
    stored = dump_config(compose(*kept))
    assert check_same_run(stored, compose(*kept)) == ""
    assert partition_main([*split, "partition=dirichlet", "partition.alpha=0.3"]) == 0
    with pytest.raises(ConfigError, match=r"run had partition.digest=\w{64}, this one has"):
        check_same_run(stored, compose(*kept))
    with pytest.raises(ConfigError, match=r"^partition.digest=\w+: the file .* has changed"):
        load_config(stored)  # as `coterie evaluate` reads a run's own config


def test_silos_in_another_order_are_refused():
    """Clients are numbered in that order."""
    source = "data.source={target: coterie.datamodules.folders:ClassFolders, size: 8}"
    one, other = (
        compose("experiment=fedmcc_digits", "data=node_local", source, f"data.clients={clients}")
        for clients in ("{a: /x, b: /y}", "{b: /y, a: /x}")
    )
    assert check_same_run(dump_config(one), one) == ""
    with pytest.raises(ConfigError, match=r"run had data.clients="):
        check_same_run(dump_config(one), other)


_SCORE = "clustering/kappa"


def best_of(run_dir):
    """The best score that the last checkpoint remembers."""
    last = (run_dir / "checkpoints" / "latest").read_text().strip()
    return unseal(run_dir / "checkpoints" / last / "run.json")["best"]


def test_the_best_by_one_metric_is_not_compared_with_another(tmp_path):
    run_dir = tmp_path / "run"
    keys = ("evaluation.every=1", "checkpoint.every=1")
    train(run_dir, *keys, "checkpoint.best=acc")
    by_accuracy = best_of(run_dir)
    train(run_dir, *keys, "resume=true", "checkpoint.best=kappa", "method.clustering_rounds=4")
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").open()]
    between = [row for row in rows if row["scope"] == "server" and row["round"] > 4]
    later = [row[_SCORE] for row in between if _SCORE in row]
    assert max(later) < by_accuracy  # so it would never have been the best
    assert best_of(run_dir) == max(later)


def test_a_finished_run_that_cannot_be_gone_on_with_keeps_its_summary(tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    train(run_dir, "checkpoint.every=1")
    before = (run_dir / "summary.json").read_text()

    def interrupted(*_):
        raise InterruptedRunError("SIGINT came")

    monkeypatch.setattr(Recorder, "evaluate", interrupted)
    with pytest.raises(InterruptedRunError):
        train(run_dir, "resume=true")
    assert (run_dir / "summary.json").read_text() == before
    again = shutil.copytree(run_dir, tmp_path / "again")
    with pytest.raises(InterruptedRunError):  # what was made longer is no longer finished
        train(run_dir, "resume=true", "method.clustering_rounds=3")
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "interrupted"
    (again / "checkpoints" / "round-000004" / "run.json").write_text("{")
    with pytest.raises(InterruptedRunError):  # nor what had to be trained again
        train(again, "resume=true")
    assert json.loads((again / "summary.json").read_text())["status"] == "interrupted"


class Records(Silent):
    """Remembers what it is told of finished phases."""

    def phase_finished(self, record):
        self.notes.append(record)


def test_the_terminal_counts_the_bytes_before_a_resume_too(tmp_path):
    run_dir = tmp_path / "run"
    train(run_dir)
    view, progress = Records(), Progress(clock=lambda: 0.0)
    keys = ("resume=true", "method.clustering_rounds=3")
    Federation(compose(*TINY, f"run_dir={run_dir}", *keys), view).run()
    (record,) = [note for note in view.notes if isinstance(note, PhaseRecord)]
    progress.end(record)
    sent = json.loads((run_dir / "summary.json").read_text())["bytes"]
    assert (progress.down, progress.up, progress.peer) == (sent["down"], sent["up"], 0)


@pytest.fixture
def folder(finished_run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run.run_dir, tmp_path / "copy"))


def asked(folder: Path, *others: str) -> tuple[str, ...]:
    return ("resume=true", f"run_dir={folder}", *others)


def test_the_config_is_the_runs_own(folder: Path, finished_run) -> None:
    found = dump_config(compose(*asked(folder)))
    own = RunDirectory.open(str(finished_run.run_dir)).read_config()
    assert found == {**own, "resume": True, "run_dir": str(folder)}


def test_values_and_another_backend_may_be_given(folder: Path) -> None:
    found = compose(*asked(folder, "cluster=local", "tracking=none", "method.clustering_rounds=3"))
    assert (found.cluster.backend, found.method.clustering_rounds) == ("ray", 3)
    with pytest.raises(
        ConfigError, match=r"^method\.clusterin_rounds=3: there is no such key; did"
    ):
        compose(*asked(folder, "method.clusterin_rounds=3"))


def test_a_longer_run_needs_no_more_than_its_new_length(folder: Path) -> None:
    assert main(asked(folder, "method.clustering_rounds=3")) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("completed", 5)


def test_a_submitted_job_resumes_the_run_in_its_folder(folder: Path, monkeypatch) -> None:
    longer = compose(*asked(folder, "method.clustering_rounds=3"))
    again = longer.model_copy(update={"resume": False})
    with pytest.raises(ConfigError, match="the folder is not empty"):
        Federation(again, Silent()).run()
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    Federation(again, Silent()).run()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("completed", 5)
    other = again.model_copy(update={"seed": 7})
    with pytest.raises(ConfigError, match="the checkpoint's run had seed=0, this one has seed=7"):
        Federation(other, Silent()).run()


@pytest.mark.parametrize("others", [("resume=false",), ("encoder=mlp",)])
def test_else_an_experiment_is_asked_for(folder: Path, others: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refusal:
        compose(*asked(folder, *others))
    assert str(refusal.value) == (
        "experiment: none is chosen; give experiment=<name> (--help lists them)."
    )
