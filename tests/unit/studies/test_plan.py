"""What `coterie compare` makes of its command line."""

# ruff: noqa: E501 -- the sentences stand whole

import pytest

from coterie.errors import ConfigError
from coterie.jobs.compare import main
from coterie.studies.plan import Variant, read_comparison

TWO = "experiments=[fedmcc_digits,fedavg_digits]"


def planned(*arguments):
    """Label to experiment and overrides."""
    _, variants = read_comparison(arguments)
    return {v.label: (v.experiment, *v.overrides) for v in variants}


def test_experiments_have_their_own_names_or_given_ones():
    assert planned(TWO, "data.limit=60") == {
        "fedmcc_digits": ("fedmcc_digits", "data.limit=60"),
        "fedavg_digits": ("fedavg_digits", "data.limit=60"),
    }
    named = "experiments={plain: cc_digits, mild: cc_digits}"
    assert planned(named, "mild:method.form=paper") == {
        "plain": ("cc_digits",),
        "mild": ("cc_digits", "method.form=paper"),
    }
    assert planned("experiments=cc_digits") == {"cc_digits": ("cc_digits",)}


def test_several_values_are_a_variant_each():
    found = planned("experiments=[ccfc_digits]", "partition.p=0,0.5", "method.rounds=1,2")
    assert list(found) == [
        "ccfc_digits p=0 rounds=1",
        "ccfc_digits p=0 rounds=2",
        "ccfc_digits p=0.5 rounds=1",
        "ccfc_digits p=0.5 rounds=2",
    ]
    assert found["ccfc_digits p=0.5 rounds=1"][1:] == ("partition.p=0.5", "method.rounds=1")
    one = planned(TWO, "fedmcc_digits:partition=iid,class_blocks")
    assert list(one) == [
        "fedmcc_digits partition=iid",
        "fedmcc_digits partition=class_blocks",
        "fedavg_digits",
    ]
    assert list(planned("experiments=[cc_digits]", "seedless.a=range(0,3)")) == [
        f"cc_digits a={number}" for number in range(3)
    ]


def test_keys_that_end_alike_are_written_out():
    found = planned("experiments=[cc_digits]", "encoder.width=8,16", "method.width=1,2")
    assert "cc_digits encoder.width=8 method.width=2" in found


def test_an_experiments_own_value_counts_before_everyones_whatever_the_order():
    found = planned(TWO, "fedavg_digits:method.rounds=3", "method.rounds=1,2")
    assert list(found) == ["fedmcc_digits rounds=1", "fedmcc_digits rounds=2", "fedavg_digits"]
    assert found["fedavg_digits"] == ("fedavg_digits", "method.rounds=3")


def test_folders_are_plain_and_never_shared():
    labels = ["a b=0.5", "a,b=0.5", "a b=[1,2]", "a b=[1.2]", "a b=(1,2)", "ä"]
    folders = [Variant(label, "a").folder for label in labels]
    assert folders[0] == "a,b=0.5"
    assert len(set(folders[2:])) == 4
    assert not [name for name in folders if set(name) & set(" /[]()")]
    one, other = (Variant(f"a x={'b' * 300}{end}", "a").folder for end in "cd")
    assert one != other
    assert max(len(one), len(other)) < 200  # a file's name may have 255


def test_the_seed_of_a_run_comes_last():
    assert Variant("a", "cc_digits", ("x=1",)).arguments(4) == (
        "experiment=cc_digits",
        "x=1",
        "seed=4",
    )


REFUSED = {
    (): "experiments: none is given; write experiments=[NAME,…], of those that coterie train ",
    ("experiments=[]",): "experiments: none is given; write experiments=[NAME,…], of ",
    (
        "experiments=cc_digits,cc_mnist",
    ): "experiments=cc_digits,cc_mnist: these are several values; give one, or a list as experiments=[cc_digits,cc_mnist].",
    (
        "experiments=[cc_digits,cc_digits]",
    ): "experiments=[cc_digits,cc_digits]: one is given twice; give each a name, as {name: experiment, …}.",
    ("experiments=[cc_digit]",): "experiment=cc_digit: there is no such experiment; did you mean ",
    (
        "experiments={a b: cc_digits}",
    ): "experiments: the name 'a b' may only have letters, digits, . + - _",
    ("experiments=[cc_digits]", "seeds=[1,1]"): "seeds=[1,1]: one is given twice; leave it out.",
    ("experiments=[cc_digits]", "seeds=[]"): "seeds=[]: must have at least 1 entries, not 0.",
    (
        "experiments=[cc_digits]",
        "seeds=3",
    ): "seeds=3: must be a list in brackets such as seeds=[0,1,2].",
    ("experiments=[cc_digits]", "seeds=[-1]"): "seeds[0]=-1: must be at least 0.",
    (
        "experiments=[cc_digits]",
        "seed=1",
    ): "seed=1: a comparison sets it itself; give seeds=[0,1,2].",
    (
        "experiments=[cc_digits]",
        "cc_digits:run_dir=x",
    ): "cc_digits:run_dir=x: a comparison sets it itself; give out=DIR.",
    (
        "experiments=[cc_digits]",
        "experiment=cc_mnist",
    ): "experiment=cc_mnist: a comparison sets it itself; give experiments=[NAME,…].",
    (
        "experiments=[cc_digits]",
        "parallel=0",
    ): "parallel=0: must be at least 1, or must be one of auto.",
    (
        "experiments=[cc_digits]",
        "resume=true",
    ): "resume=true: give the folder of the comparison as out=DIR.",
    (
        TWO,
        "fedmc_digits:method.epochs=1",
    ): "fedmc_digits:method.epochs=1: nothing in experiments is called fedmc_digits; did you mean fedmcc_digits?",
    (
        TWO,
        "x:method.epochs=1",
    ): "x:method.epochs=1: nothing in experiments is called x; there are fedmcc_digits, fedavg_digits.",
    (
        "experiments=[cc_digits]",
        "method.epochs=1,1",
    ): "method.epochs=1,1: a value is given twice; leave it out.",
    (
        "experiments=[cc_digits]",
        "method.epochs=interval(1,2)",
    ): "method.epochs=interval(1,2): it names no values; list them, as method.epochs=a,b.",
    (TWO, "method.rounds=1"): "fedmcc_digits: method.rounds=1: there is no such key; ",
    (
        "experiments=[cc_digits]",
        "cc_digits:method.epochs=1,x",
    ): "cc_digits epochs=x: method.epochs=x: not a whole number; ",
    ("experiments=[cc_digits]", "rubbish"): "rubbish: it cannot be read; write it as key=value.",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(REFUSED[arguments])
    assert shown.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_refused_as_a_config_error():
    with pytest.raises(ConfigError, match=r"^experiments=3: give a list such as \[fedmcc_digits"):
        read_comparison(["experiments=3"])


def test_the_help_fits_80_columns(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for key in ("experiments=", "seeds=[0,1,2]", "out=null", "resume=false", "parallel=auto"):
        assert f"  {key}" in text
