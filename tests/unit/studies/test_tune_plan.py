"""What `coterie tune` makes of its command line."""

# ruff: noqa: E501 -- the sentences stand whole

import numpy as np
import pytest

from coterie.errors import ConfigError
from coterie.jobs import tune
from coterie.studies.tune_plan import Range, points, read_tuning

SPACE = "space={method.learning_rate: {low: 1e-3, high: 0.1, log: true}, encoder: [mlp, conv3]}"
DIGITS = "experiment=orchestra_digits"


def test_each_trial_is_the_experiment_with_a_point_of_the_space():
    options, trials = read_tuning([DIGITS, SPACE, "trials=5", "method.rounds=2", "seed=3"])
    assert (len(trials), options.seed) == (5, 3)
    for variant, point in trials.items():
        assert variant.experiment == "orchestra_digits"
        assert variant.overrides == (
            "evaluation.unsupervised=true",
            "method.rounds=2",
            *(f"{key}={value}" for key, value in point.items()),
        )
        assert 1e-3 <= float(point["method.learning_rate"]) <= 0.1
        assert point["encoder"] in {"mlp", "conv3"}
        assert variant.label == " ".join(
            (f"learning_rate={point['method.learning_rate']}", f"encoder={point['encoder']}")
        )


def test_more_trials_keep_those_before_and_none_comes_twice():
    space = {"a": Range(low=1, high=9), "b": ("x", "y", None)}
    some, more = points(space, 4, seed=0), points(space, 12, seed=0)
    assert more[:4] == some
    assert len({tuple(point.values()) for point in more}) == 12
    assert points(space, 4, seed=1) != some


def test_a_small_space_is_taken_whole():
    assert len(points({"a": (1, 2, 3), "b": (True, False)}, 50, seed=0)) == 6
    assert {p["b"] for p in points({"b": (True, None)}, 50, seed=0)} == {"true", "null"}


def test_a_logarithmic_range_has_as_many_points_in_each_decade():
    found = [float(p["a"]) for p in points({"a": Range(low=1e-4, high=1.0, log=True)}, 400, seed=0)]
    assert all(1e-4 <= value <= 1 for value in found)
    shares = [sum(10**-k <= value < 10 ** (1 - k) for value in found) / 400 for k in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.25] * 4, abs=0.06)


def test_a_range_of_integers_has_all_of_them_as_often():
    rng = np.random.default_rng(0)
    drawn = [Range(low=1, high=4).draw(rng) for _ in range(4000)]
    assert all(type(value) is int for value in drawn)
    assert np.bincount(drawn)[1:] == pytest.approx([1000] * 4, abs=110)
    assert {Range(low=1, high=3, log=True).draw(rng) for _ in range(100)} == {1, 2, 3}


def test_texts_are_tried_as_they_are_written():
    folder = "/home/someone/experiments/2026/fedmcc/pretraining/simclr_fashionmnist"
    paths = [f"{folder}/run-one", f"{folder}/run-two", "1", "x, y"]
    _, trials = read_tuning([DIGITS, f"space={{encoder.path: {paths!r}}}", "trials=9"])
    assert sorted(point["encoder.path"] for point in trials.values()) == sorted(
        [paths[0], paths[1], '"1"', '"x, y"']
    )
    assert len({variant.folder for variant in trials}) == 4
    assert all(len(variant.folder) < 200 for variant in trials)


def test_the_space_may_lie_in_a_file(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text("method.epochs: [1, 2]\n")
    _, trials = read_tuning([DIGITS, f"space={path}"])
    assert {point["method.epochs"] for point in trials.values()} == {"1", "2"}


@pytest.mark.parametrize(
    ("objective", "implied", "lower"),
    [
        ("unsupervised/selection", "evaluation.unsupervised=true", False),
        ("unsupervised/mixing", "evaluation.unsupervised=true", True),
        ("linear/acc", "evaluation.linear_probe_between=true", False),
        ("loss", None, True),
    ],
)
def test_trials_measure_what_is_to_choose(objective, implied, lower):
    options, trials = read_tuning([DIGITS, SPACE, f"objective={objective}"])
    (first, *_) = next(iter(trials)).overrides
    assert (first == implied) if implied else first.startswith("method.")
    assert options.lower is lower
    assert read_tuning([DIGITS, SPACE, "mode=max"])[0].lower is False


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([SPACE], "experiment: a value is needed"),
        ([DIGITS], "space: none is given; write space='{method.KEY: [VALUE, VALUE]}'."),
        ([DIGITS, "spac={method.lr: [1, 2]}"], "spac={method.lr: [1, 2]}: there is no such key; did you mean space?"),
        ([DIGITS, SPACE, "trails=2"], "trails=2: there is no such key; did you mean trials?"),
        ([DIGITS, "space=nowhere.yaml"], "space=nowhere.yaml: it cannot be read (No such file or directory); check the path"),
        ([DIGITS, "space={method.epochs: []}"], "space.method.epochs=[]: give values as [1, 2], or a range as {low: 1, high: 2}."),
        ([DIGITS, "space={method.lr: {low: 0, high: 1, log: true}}"], "low=0 has no logarithm"),
        ([DIGITS, "space={method.lr: {low: 2, high: 1}}"], "low=2 is not below high=1"),
        ([DIGITS, "space={method.lr: {low: 2, hi: 3}}"], "space.method.lr.hi=3: there is no such key; did you mean space.method.lr.high?"),
        ([DIGITS, SPACE, "trials=0"], "trials=0"),
    ],
)  # fmt: skip
def test_what_is_refused(arguments, sentence):
    with pytest.raises(ConfigError) as refused:
        read_tuning(arguments)
    assert sentence in str(refused.value)


def test_the_key_of_a_trial_is_named_once(capsys, tmp_path):
    space = "space={method.lerning_rate: [1, 2]}"
    assert tune.main([DIGITS, space, f"run_dir={tmp_path / 't'}"]) == 2
    assert capsys.readouterr().err.startswith("method.lerning_rate=")


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("space={method.lerning_rate: [1, 2]}", "did you mean method.learning_rate"),
        ("method.epochs=1,2", "these are several values"),
    ],
)
def test_what_no_run_would_take_is_refused_before_any_trial(capsys, tmp_path, key, sentence):
    out = tmp_path / "t"
    assert tune.main([DIGITS, SPACE, key, f"run_dir={out}"]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "content",
    ['{"objective": "loss"', "[1]", '{"objective": "loss"}', '{"objective": "loss", "rounds": 3}'],
)
def test_a_damaged_list_of_stopped_trials_is_refused(tmp_path, capsys, content):
    (tmp_path / "tune.yaml").write_text("experiments: {}")
    (tmp_path / "stopped.json").write_text(content)
    words = ("experiment=fedmcc_digits", "objective=loss", "space={method.learning_rate: [0.1]}")
    more = ("cluster=serial", "trials=1", "data.limit=200", f"run_dir={tmp_path}")
    assert tune.main([*words, *more]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith(f"{tmp_path}/stopped.json: it does not say which trials were stopped (")


def test_without_ray_tune_a_sentence_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(tune, "_NEEDED", ("pandas", "no_such_package"))
    assert tune.main([DIGITS, SPACE]) == 2
    shown = capsys.readouterr().err
    assert shown == (
        "coterie tune needs Ray Tune, and no_such_package is not installed; install it with pip "
        "install 'coterie[tune]'.\n"
    )


def test_help_names_every_key(capsys):
    assert tune.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "objective=unsupervised/selection" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("experiment", "objective", "instead"),
    [
        (
            "fedavg_digits",
            "clustering/acc",
            "the method learns classes, so trials have no such score; take test/acc",
        ),
        ("fedmcc_digits", "test/acc", "the method learns clusters, so trials have no such score"),
        ("fedmcc_digits", "clustering/foo", "must be one of acc, nmi, ari, kappa"),
    ],
)
def test_an_objective_that_the_method_has_not_is_refused_before_a_trial(
    capsys, tmp_path, experiment, objective, instead
):
    space = "space={data.limit: [100, 200]}"
    words = [f"experiment={experiment}", space, f"objective={objective}", f"run_dir={tmp_path}/t"]
    assert tune.main(words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"objective={objective}: {instead}" in said
    assert not (tmp_path / "t").exists()
