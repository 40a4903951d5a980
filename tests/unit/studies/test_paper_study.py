"""Every study composes at every scale; what is mistyped is refused in one sentence."""

import pytest

from coterie.commands.compose import groups
from coterie.errors import ConfigError
from coterie.jobs.study import main
from coterie.studies.paper_plan import StudyConfig, StudyPlan
from coterie.studies.paper_study import (
    SCALES,
    Cell,
    PaperStudy,
    cell_variants,
    prepared_variants,
    read_study,
    studies,
)
from coterie.studies.plan import Variant, variant_configs
from coterie.studies.study_list import study_list

PAPERS = {
    "CCFC": ("table 3", "table 4", "figure 5", "figure 6", "tables 1 and 2"),
    "FedMCC": ("table I", "table II", "table VII", "table VIII"),
    "CF-CL": ("figure 5", "figure 6", "figure 8", "figure 11"),
    "Orchestra": (
        "table 1, cross-device",
        "table 1, cross-silo",
        "table 6",
        "figure 5",
        "figure 7",
    ),
    "CP-CFL": ("tables 3 and 4", "table 5", "table 9", "table 10"),
}
EVERY = [(name, scale) for name in studies() for scale in SCALES]


def small(**changes) -> PaperStudy:
    scale = {"budget": "none", "takes": "no time", "overrides": "data=digits"}
    values = {
        "about": "It shows.",
        "paper": "Paper, table 1",
        "page": "paper",
        "metrics": {"NMI": "clustering/nmi"},
        "reference": "ours",
        "rows": {"ours": "experiment=ccfc", "theirs": "experiment=kfed", "printed": None},
        "columns": {"p=0": "partition.p=0", "p=1": "partition.p=1"},
        "scales": {name: dict(scale) for name in SCALES},
    }
    return PaperStudy.model_validate(values | changes)


def first_of_each(plan: StudyPlan) -> list[Variant]:
    """The first cell of each row and of each column."""
    seen, found = set(), []
    for variant, cell in plan.cells(None).items():
        if not {cell.row, cell.column} <= seen:
            found.append(variant)
            seen |= {cell.row, cell.column}
    return found


def test_the_tables_of_the_papers_have_their_studies() -> None:
    wanted = {f"{paper}, {table}" for paper, tables in PAPERS.items() for table in tables}
    assert {read_study(name).paper for name in studies()} >= wanted


@pytest.mark.parametrize("name", studies())
def test_a_study_composes(name: str) -> None:
    plan = StudyPlan(StudyConfig(study=name, scale="cpu"))
    variants = first_of_each(plan)
    assert variant_configs(variants[:1], 0).keys() == set(variants[:1])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_row_and_column_composes_at_every_scale(name: str, scale: str) -> None:
    plan = StudyPlan(StudyConfig(study=name, scale=scale))
    variants = [*plan.prepared.values(), *first_of_each(plan)]
    assert len(variant_configs(variants, 0)) == len(variants)


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_runs_have_names_of_their_own_and_the_reference_is_run(name: str, scale: str) -> None:
    plan = StudyPlan(StudyConfig(study=name, scale=scale))
    cells = plan.cells(None)
    assert len({variant.label for variant in cells}) == len(cells)
    assert len({variant.folder for variant in cells}) == len(cells)
    assert plan.study.reference in {cell.row for cell in cells.values()}
    if scale != "smoke":
        assert len(cells) > 1


@pytest.mark.parametrize("name", studies())
def test_a_claim_compares_cells_that_differ_in_one_thing(name: str) -> None:
    study = read_study(name)
    for claim in study.claims:
        (row, column), (other_row, other_column) = claim.more, claim.less
        assert (row == other_row) != (column == other_column), claim.says
        words = [study.columns[each].split() for each in (column, other_column)]
        first, second = ([w for w in each if w.startswith("method.rounds=")] for each in words)
        assert first == second, claim.says


@pytest.mark.parametrize("name", ["cpcfl_5", "cpcfl_10", "cfcl_7"])
def test_the_comparison_is_asked_for_what_summaries_have(name: str) -> None:
    """Relevance, and what is taken from the rounds, are in the study's file alone."""
    plan = StudyPlan(StudyConfig(study=name, scale="cpu"))
    asked = plan.options("cells", (0,)).metrics
    assert asked == tuple(m for m in plan.study.metrics.values() if "/" in m and " " not in m)
    assert len(asked) < len(plan.study.metrics)


def test_overrides_come_from_the_general_to_the_special() -> None:
    scale = {"budget": "", "takes": "", "overrides": "c=1", "columns": {"p=1": "d=1"}}
    scale |= {"rows": {"ours": "f=1", "theirs": None}}
    study = small(
        overrides="a=1",
        rows={"ours": "experiment=ccfc e=1", "theirs": "experiment=kfed"},
        columns={"p=0": "b=0", "p=1": "b=1"},
        scales={name: dict(scale) for name in SCALES},
    )
    expected = Variant("ours, p=1", "ccfc", ("a=1", "b=1", "c=1", "d=1", "e=1", "f=1", "g=1"))
    assert cell_variants(study, "cpu", ["g=1"]) == {expected: Cell("ours", "p=1")}


def test_a_row_over_each_client_is_the_mean_of_rows_of_their_own() -> None:
    alone = {"client 1": "method.alone=0", "client 2": "method.alone=1"}
    own = {"ours": "f=1", "ours, client 2": None}
    study = small(
        each={"ours": alone},
        columns={"p=0": ""},
        scales={name: {"budget": "", "takes": "", "rows": dict(own)} for name in SCALES},
    )
    assert study.means == {"ours": ["ours, client 1", "ours, client 2"]}
    assert list(study.rows) == ["ours", "ours, client 1", "ours, client 2", "theirs", "printed"]
    found = {v.label: v.overrides for v in cell_variants(study, "cpu")}
    assert found == {"ours, client 1, p=0": ("method.alone=0", "f=1"), "theirs, p=0": ()}
    assert PaperStudy.model_validate(study.model_dump()) == study


def test_rows_start_from_prepared_runs(tmp_path) -> None:
    scale = {
        "budget": "",
        "takes": "",
        "prepare": {"one": "experiment=simclr", "two": {"p=0": "experiment=byol"}},
    }
    study = small(
        rows={
            "ours": "experiment=ccfc encoder=pretrained encoder.path={one}",
            "theirs": "experiment=kfed x={two}",
        },
        columns={"p=0": ""},
        scales={name: dict(scale) for name in SCALES},
    )
    prepared = prepared_variants(study, "cpu")
    assert {label: v.experiment for label, v in prepared.items()} == {
        "one": "simclr",
        "two, p=0": "byol",
    }
    folders = {label: tmp_path / label for label in prepared}
    found = {v.label: v.overrides for v in cell_variants(study, "cpu", (), folders)}
    assert found["ours, p=0"] == ("encoder=pretrained", f"encoder.path='{tmp_path / 'one'}'")
    assert found["theirs, p=0"] == (f"x='{tmp_path / 'two, p=0'}'",)
    assert cell_variants(study, "cpu").keys() >= {Variant("ours, p=0", "ccfc")}


def test_only_what_chosen_cells_start_from_is_prepared() -> None:
    def prepared(**chosen: tuple[str, ...]) -> set[str]:
        plan = StudyPlan(StudyConfig(study="fedmcc_1", scale="cpu", **chosen))
        assert plan.cells(plan.folders)
        return set(plan.prepared)

    sources = ("fedu", "stage1", "standardised")
    assert prepared() == {f"{name}, {data}" for name in sources for data in ("CIFAR-10", "MNIST")}
    assert prepared(columns=("MNIST",)) == {f"{name}, MNIST" for name in sources}
    assert prepared(rows=("FedMCC",)) == {"stage1, CIFAR-10", "stage1, MNIST"}
    assert prepared(rows=("Fed + CC",)) == set()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"reference": "our"},
            "there is no row our; it must be one of ours, theirs, printed; did you mean ours?",
        ),
        (
            {"printed": {"NMI": {"ours": [0.5]}}},
            "ours has more or fewer printed numbers than columns",
        ),
        ({"printed": {"ACC": {}}}, "there is no metric ACC"),
        ({"only": {"ours": ["p=2"]}}, "there is no column p=2"),
        (
            {"claims": [{"says": "", "more": ["ours", "p=0"], "less": ["x", "p=0"]}]},
            "there is no row x",
        ),
        ({"scales": {}}, "the scale smoke is missing"),
    ],
)
def test_names_that_do_not_exist_are_refused(changes, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        small(**changes)


REFUSED = {
    ("study=ccfc_9",): "study=ccfc_9: there is no such study; did you mean ",
    ("study=ccfc_1", "scale=big"): "scale=big: must be one of smoke, cpu, paper.",
    ("study=ccfc_1", "rows=[CCF]"): "rows=[CCF]: must be one of 'k-means, centralised', ",
    ("study=ccfc_1", "columns=['STL-10 p=0']"): "columns=[STL-10 p=0]: must be one of MNIST p=0, ",
    ("study=ccfc_1", "columns=[STL-10 p=0]"): "columns=[STL-10 p=0]: must be one of MNIST p=0, ",
    (
        "study=ccfc_1",
        "columns=[MNIST p=0.75, Fashion-MNIST p=0.75]",
        "rows=[Concord]",
    ): "rows=[Concord] columns=[MNIST p=0.75,Fashion-MNIST p=0.75]: nothing is run there",
    (
        "study=ccfc_1",
        "columns=['MNIST p=0.75']",
        "rows=[Concord]",
    ): "rows=[Concord] columns=[MNIST p=0.75]: nothing is run there",
    ("study=ccfc_1", "experiment=kmeans"): "experiment=kmeans: a study sets it itself; choose rows",
    ("study=ccfc_1", "seed=7"): "seed=7: a study sets it itself; give seeds=[0,1,2].",
    ("study=ccfc_1", "run_dir=x"): "run_dir=x: a study sets it itself; give out=DIR.",
    ("study=ccfc_1", "resume=true"): "resume=true: a study sets it itself; leave it out.",
    (
        "study=ccfc_5",
        "scale=smoke",
        "method.round=1",
    ): "λ=0.001, p=0: method.round=1: there is no such key; did you mean method.rounds?",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_cannot_be_run_is_refused_in_one_sentence(
    arguments, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(REFUSED[arguments])
    assert shown.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [(), ("study=?",)])
def test_without_a_study_all_are_listed(arguments, capsys) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert shown.rstrip("\n") == study_list()
    assert max(map(len, shown.splitlines())) <= 80
    assert all(f"\n{name} " in f"\n{shown}" for name in studies())
    scales = read_study("ccfc_1").scales
    assert ", ".join(f"{name} {scales[name].takes}" for name in SCALES) in shown


def test_the_help_fits_80_columns(capsys) -> None:
    assert main(["--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_studies_are_no_group_that_a_run_chooses_from() -> None:
    assert "study" not in groups()


def test_a_broken_file_is_refused_by_its_name(tmp_path, monkeypatch) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("about: [")
    monkeypatch.setattr("coterie.studies.paper_study.studies", lambda: {"x": path})
    with pytest.raises(ConfigError, match=r"x\.yaml: not plain YAML\.$"):
        read_study("x")
