"""The text of --help: complete, 80 columns, and from the same sources as the run."""

import pytest
import yaml

from coterie.commands.compose import experiments, groups
from coterie.commands.help_text import help_text
from coterie.config import COMPONENTS, RunConfig
from coterie.config.explain import dotted_fields, model_in
from coterie.errors import ConfigError


def lines_after(text: str, title: str) -> list[str]:
    lines = text.splitlines()
    start = lines.index(title) + 1
    return lines[start : lines.index("", start) if "" in lines[start:] else len(lines)]


def test_no_line_is_wider_than_80_columns() -> None:
    text = help_text("encoder=conv3", "partition=dirichlet", "augmentation=digits")
    assert max(map(len, text.splitlines())) <= 80
    assert text.endswith("\n")


def test_alone_it_fits_a_terminal_and_has_every_experiment() -> None:
    lines = help_text().splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) <= 80
    shown = set()
    start = next(n for n, line in enumerate(lines) if line.split()[0].endswith(","))
    *few, data = " ".join(lines[start:-1]).replace(",", "").replace(":", "").split()
    shown |= {*few, *(f"{method}_{data}" for method in few)}
    for method, *data in (line.split() for line in lines[2:start]):
        shown |= {method, *(f"{method}_{name.partition('[')[0]}" for name in data)}
        more = [(name.split("[")[0], x.rstrip("]")) for name in data for x in name.split("[")[1:]]
        shown |= {f"{method}_{base}{rest}" for base, rest in more}
    assert experiments().keys() <= shown


def test_every_experiment_stands_with_its_description() -> None:
    text = " ".join(
        " ".join(lines_after(help_text("all"), "Experiments (experiment=NAME):")).split()
    )
    assert len(experiments()) > 40
    for name, description in experiments().items():
        assert f"{name} {description}" in text


def test_every_group_stands_with_its_choices() -> None:
    rows = lines_after(help_text("all"), "Groups (GROUP=CHOICE):")
    text = " ".join(" ".join(rows).split())
    wanted = [f"{name} {', '.join(found)}" for name, found in groups().items()]
    assert text == " ".join(line for line in wanted if not line.startswith("experiment "))


def test_every_key_stands_with_default_and_docstring() -> None:
    shown = help_text("all")
    rows = lines_after(shown, "Keys (KEY=VALUE) with their defaults:")
    seldom = lines_after(shown, "Keys that are seldom needed:")
    named = [row.strip().partition("=")[0] for row in (*rows, *seldom) if row[2] != " "]
    keys = set(named)
    assert len(keys) == len(named)
    expected = {
        name
        for name, field in dotted_fields(RunConfig).items()
        if model_in(field.annotation) is None and name != "experiment"
    }
    assert keys == expected - {*COMPONENTS, "participation.availability_digest"}
    assert "  cluster.num_actors=null" in rows
    place = rows.index("  checkpoint.every=10")
    assert (
        rows[place + 1]
        == "      Rounds between checkpoints; 0: only at the end and when interrupted."
    )
    assert rows[rows.index("  seed=0") + 1] == "      Seed of all randomness in the run; below 2⁶³."
    text = " ".join(" ".join(rows).split())
    assert "an actor's GPU if it has one. (auto, cpu, cuda) labelled_pool=0.0" in text


def test_exit_codes() -> None:
    assert lines_after(help_text("all"), "Exit codes:") == [
        "  0    completed",
        "  1    the run failed",
        "  2    the config or the data was refused",
        "  3    completed, but clients were dropped",
        "  130  interrupted, after a checkpoint",
    ]


def test_a_choice_adds_its_own_keys() -> None:
    text = help_text("partition=dirichlet", "seed=3")
    rows = lines_after(text, "Keys of partition=dirichlet with their defaults:")
    assert "  partition.alpha=0.1" in rows  # the choice's own, which the model leaves open
    assert "  partition.equal_sizes=false" in rows  # the model's
    assert "Keys of partition=dirichlet" not in help_text("all")


def test_a_class_of_ones_own_adds_its_keys() -> None:
    text = help_text("experiment=fedcc_digits", "method.target=coterie.modules.fedavg:FedAvg")
    rows = lines_after(
        text, "Keys of method.target=coterie.modules.fedavg:FedAvg with their defaults:"
    )
    assert any(row.startswith("  method.rounds=") for row in rows)
    assert max(map(len, text.splitlines())) <= 80


def test_the_list_of_experiments_is_left_out_where_one_is_named() -> None:
    assert "Experiments (experiment=NAME):" not in help_text("experiment=fedcc_digits")


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^partition=dirichlt: .*did you mean dirichlet\?$"):
        help_text("partition=dirichlt")


def test_an_experiment_shows_what_it_sets_with_the_rest_of_the_line() -> None:
    text = help_text("experiment=cfcl_usps", "method.budget=50")
    rows = lines_after(text, "experiment=cfcl_usps sets these; all else has its default:")
    values = yaml.safe_load("\n".join(rows))
    assert values["method"]["target"] == "coterie.modules.cfcl:CFCL"
    assert (values["method"]["budget"], values["method"]["aggregate_every"]) == (50, 10)
    assert values["partition"]["clients"] == 10
    assert max(map(len, text.splitlines())) <= 80


def test_an_experiment_without_data_shows_what_it_sets_and_its_methods_keys() -> None:
    text = help_text("experiment=ccfc")
    assert "experiment=ccfc sets these; all else has its default:" in text
    assert "data: null" not in text
    keys = lines_after(text, "Keys of its method, as it sets them:")
    assert "  method.clusters=null" in keys
    other = help_text("experiment=ccfc", "method.target=coterie.modules.fedavg:FedAvg")
    assert "\n  method.clusters=" not in other
    assert "\n  method.optimizer=sgd\n" in other


@pytest.mark.parametrize(
    "choice",
    ["encoder=timm:resnet18", "encoder=exported", "partition=file", "experiment=concord_digits"],
)
def test_keys_that_are_filled_in_are_not_listed(choice) -> None:
    shown = help_text(choice)
    assert "digest=" not in shown
    assert "encoder.source=" not in shown


def test_a_component_within_the_method_shows_its_keys():
    text = help_text("experiment=lightning", "method.strategy=fedprox")
    rows = lines_after(text, "Keys of method.strategy:")
    assert rows[0] == "  method.strategy.mu=0.01"
