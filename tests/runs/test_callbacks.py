"""Callbacks of the run and of the Trainer on each client, given or named by the config."""

import json
import os
from pathlib import Path

import pytest

from coterie import Federation, RunCallback, compose
from coterie.errors import ConfigError
from coterie.jobs.train import main
from tests.builders.callbacks import Both, Diary, Raises, Steps
from tests.builders.federation import same_bits
from tests.builders.observers import Silent
from tests.builders.runs import COMMAND

RUN = (*COMMAND, "executor=lightning", "partition.clients=2", "evaluation.every=1")


def run(folder, *overrides, callbacks=()):
    return Federation(compose(*RUN, *overrides, f"run_dir={folder}"), callbacks=callbacks).run()


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("callbacks")
    (folder / "steps").mkdir()
    both = Both(str(folder / "steps"))
    named = f"callbacks=[{{target: tests.builders.callbacks:Diary, path: {folder}/diary}}]"
    return run(folder / "run", named, callbacks=[both]), both, folder


def test_the_hooks_of_the_run_are_called_in_order(ran):
    _, both, _ = ran
    assert both.lines == [
        ("start", "fedmcc_digits", "FedMCC"),
        ("client", 0),
        ("client", 1),
        ("evaluation", 1, "clustering/acc", False),
        ("phase", 1),
        ("round", 1),
        ("client", 0),
        ("client", 1),
        ("phase", 2),
        ("round", 2),
        ("evaluation", 2, "clustering/acc", True),
        ("end", "completed", None),
    ]


def test_one_that_the_config_names_sees_the_same(ran):
    _, both, folder = ran
    lines = [json.loads(line) for line in (folder / "diary").read_text().splitlines()]
    assert lines == [list(line) for line in both.lines]


def test_each_local_trainer_has_a_fresh_copy(ran):
    _, both, folder = ran
    (path,) = (folder / "steps").iterdir()
    assert path.name == str(os.getpid())
    assert path.read_text().split() == ["4"] * 4  # two clients in two rounds: 50 samples by 16
    assert both.steps == 0


def test_the_history_has_every_phase_and_the_final_scores(ran):
    result = ran[0]
    rows = result.history.to_pylist()
    assert [row["round"] for row in rows] == [1, 2, 2]
    assert rows[-1]["clustering/acc"] == result.metrics["clustering"]["acc"]
    assert rows[0]["clustering/acc"] is not None
    assert rows[1]["clustering/acc"] is None
    assert result.history["loss"].null_count == 1


def test_the_plot_has_the_losses_of_both_stages_and_the_scores(ran):
    figure = ran[0].plot()
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:2] == ["loss of representation", "loss of clustering"]
    assert sorted(titles[2:]) == ["", "cluster", "entropy", "instance"]  # the terms, and the scores
    assert figure._repr_png_()[:4] == b"\x89PNG"


def test_an_exception_in_a_hook_ends_the_run(tmp_path):
    with pytest.raises(OverflowError, match="too much"):
        run(tmp_path / "run", callbacks=[Raises()])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"


@pytest.mark.parametrize(
    ("callbacks", "sentence"),
    [
        (
            "[{target: builtins:dict}]",
            "callbacks[0].target=builtins:dict: it is not of type Callback or",
        ),
        ("[{path: x}]", "callbacks[0]={path:x}: name its class, as {target: package.module:Class}"),
        ("[{target: 'tests.builders.callbacks:Steps'}]", "callbacks[0].target=tests.builders.call"),
        (
            "[{target: 'lightning.pytorch.callbacks:ModelCheckpoint'}]",
            "callbacks: ModelCheckpoint would write files on every client; the run writes",
        ),
    ],
)
def test_what_is_no_callback_is_refused_in_a_sentence(tmp_path, capsys, callbacks, sentence):
    assert main([*RUN, f"callbacks={callbacks}", f"run_dir={tmp_path}/run"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(sentence)
    assert error.count("\n") == 1


def test_the_bare_executor_refuses_what_needs_a_trainer(tmp_path):
    config = compose(*COMMAND, f"run_dir={tmp_path}/run")
    with pytest.raises(ConfigError, match="executor=bare: it has no Trainer, which the callback S"):
        Federation(config, callbacks=[Steps(str(tmp_path))])
    with pytest.raises(ConfigError, match="callbacks: int is not a callback"):
        Federation(config, callbacks=[3])
    assert Federation(config, callbacks=[Diary()])


@pytest.mark.slow
@pytest.mark.ray
def test_it_reaches_the_trainers_in_rays_actors(tmp_path):
    steps = tmp_path / "steps"
    steps.mkdir()
    run(tmp_path / "run", "cluster=local", "cluster.num_actors=2", callbacks=[Steps(str(steps))])
    counts = {path.name: path.read_text().split() for path in Path(steps).iterdir()}
    assert str(os.getpid()) not in counts
    assert [count for own in counts.values() for count in own] == ["4"] * 4


class StopsFirst(RunCallback):
    """Ends the run after its first round; named in a config."""

    def on_round_end(self, record):
        self.should_stop = True


class Stops(RunCallback):
    """Ends the run after the first round."""

    def on_round_end(self, record):
        self.should_stop = record.phase.round == 1


def test_one_can_end_the_run_as_completed(tmp_path):
    config = compose(*RUN, f"run_dir={tmp_path / 'run'}")
    view = Silent()
    done = Federation(config, view, callbacks=[Stops()]).run()
    summary = json.loads((done.run_dir / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("completed", 1)
    assert "A callback ended the run after round 1." in view.notes
    assert (done.run_dir / "model" / "model.safetensors").exists()


def test_a_run_that_one_ended_goes_on_without_it(tmp_path):
    named = "callbacks=[{target: tests.runs.test_callbacks:StopsFirst}]"
    done = run(tmp_path / "run", named)
    assert json.loads((done.run_dir / "summary.json").read_text())["rounds"] == 1
    view = Silent()
    keys = ("resume=true", f"run_dir={tmp_path / 'run'}", "callbacks=[]")
    again = Federation(compose(*keys), view).run()
    assert any(note.startswith("Not as before: callbacks changes from") for note in view.notes)
    straight = run(tmp_path / "straight")
    assert same_bits(again.model.state_dict(), straight.model.state_dict())


def test_a_run_that_one_ended_goes_on_only_if_it_is_given_more_rounds(tmp_path):
    config = (*RUN, f"run_dir={tmp_path / 'run'}", "checkpoint.every=1")
    done = Federation(compose(*config), Silent(), callbacks=[Stops()]).run()
    view = Silent()
    again = Federation(compose(*config, "resume=true"), view, callbacks=[Stops()]).run()
    assert "A callback ended the run after round 1." in view.notes
    assert json.loads((again.run_dir / "summary.json").read_text())["rounds"] == 1
    assert again.metrics == done.metrics
    more = ("method.clustering_rounds=3", "resume=true")
    longer = Federation(compose(*config, *more), Silent()).run()
    assert json.loads((longer.run_dir / "summary.json").read_text())["rounds"] == 4
    straight = run(tmp_path / "straight", "method.clustering_rounds=3")
    assert same_bits(longer.model.state_dict(), straight.model.state_dict())
