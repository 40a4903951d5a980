"""The pages of results are what `make results` writes from docs/results/data and configs/study."""

from pathlib import Path

import pytest

from coterie.errors import DataError
from coterie.studies.findings import findings_texts
from coterie.studies.measurement import Measurement
from coterie.studies.paper_study import Cell, cell_variants, read_study, studies
from coterie.studies.results_file import Result, add_results, read_results
from coterie.studies.results_pages import written_pages

DOCS = Path(__file__).resolve().parents[2] / "docs"
DATA = DOCS / "results" / "data"
FILES = sorted(DATA.glob("*-*.csv"))  # the others have tests of their own


def test_the_pages_are_those_of_the_data() -> None:
    for path, text in written_pages(DOCS).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run make results"


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_result_is_of_a_cell_that_the_study_runs(path: Path) -> None:
    name, _, scale = path.stem.rpartition("-")
    assert name in studies()
    assert scale in ("cpu", "paper")
    cells = set(cell_variants(read_study(name), scale).values())  # type: ignore[arg-type]
    for result in read_results(path):
        assert result.cell in cells
        assert result.commit
        assert result.device


def result(row: str, seed: int, acc: float) -> Result:
    return Result(Cell(row, "USPS"), seed, {"linear/acc": acc}, "abc", "a device", "d")


FINDINGS = """page,finding,measured,seeds,command,commit,device
cfcl,bulk exchange,it is best,"0, 1",python -m x,abc,a device
"""
FOUND = """- bulk exchange: it is best (seeds 0, 1; abc, a device).

    ```bash
    python -m x
    ```
"""
CLAIM = (
    "(USPS) | in words | linear probe 0.851 ± 0.001 against 0.820 ± 0.000 | yes "
    "| [CF-CL, figure 5](results/cfcl.md#cf-cl-figure-5)"
)


def test_a_page_has_the_numbers_and_the_sign(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    for page in {read_study(name).page for name in studies()}:
        names = [name for name in studies() if read_study(name).page == page]
        marks = "".join(f"<!-- study {name} -->\nold\n<!-- end -->\n" for name in names)
        marks += "<!-- findings -->\nold\n<!-- end -->\n"
        (docs / "results" / f"{page}.md").write_text(f"before\n{marks}after\n")
    (docs / "results.md").write_text("<!-- claims -->\n<!-- end -->\n")
    new = [result("explicit", seed, 0.85 + 0.001 * seed) for seed in range(3)]
    new += [result("none", seed, 0.82) for seed in range(3)]
    add_results(docs / "results" / "data" / "cfcl_5-cpu.csv", new)
    (docs / "results" / "data" / "findings.csv").write_text(FINDINGS)
    texts = {path.name: text for path, text in written_pages(docs).items()}
    assert "| USPS | explicit | 3 | 0.851 ± 0.001 | – |\n" in texts["cfcl.md"]
    assert "| USPS | none | 3 | 0.820 ± 0.000 | yes |\n" in texts["cfcl.md"]
    assert "No run has: kNN." in texts["cfcl.md"]
    assert "coterie study study=cfcl_5 scale=cpu\n" in texts["cfcl.md"]
    assert "Not run: `coterie study study=cfcl_8 scale=cpu`" in texts["cfcl.md"]
    assert texts["cfcl.md"].startswith("before\n")
    assert "old" not in texts["cfcl.md"]
    assert "Not run at this scale: implicit; uniform; k-means; bulk;" in texts["cfcl.md"]
    assert FOUND in texts["cfcl.md"]
    assert FOUND not in texts["ccfc.md"]
    assert "Claims measured: 1. Yes: 1, no: 0, undecided: 0." in texts["results.md"]
    assert f"| CF-CL: explicit exchange beats none {CLAIM} |" in texts["results.md"]
    assert "CF-CL: implicit exchange beats none (USPS); " in texts["results.md"]
    page = (docs / "results" / "cfcl.md").read_text()
    (docs / "results" / "cfcl.md").write_text(page.replace("<!-- end -->\n", "", 1))
    with pytest.raises(DataError, match=r"cfcl\.md: add `<!-- study cfcl_"):
        written_pages(docs)
    (docs / "results" / "cfcl.md").write_text("no marks\n")
    with pytest.raises(DataError, match=r"cfcl\.md: add `<!-- study cfcl_"):
        written_pages(docs)


def test_findings_without_a_column_are_refused(tmp_path: Path) -> None:
    (tmp_path / "findings.csv").write_text("page,finding\ncfcl,bulk\n")
    with pytest.raises(DataError, match=r"findings\.csv: .* does not have the columns page, fi"):
        findings_texts(tmp_path / "findings.csv")


def test_the_sign_is_that_of_the_printed_numbers() -> None:
    study = read_study("ccfc_1")
    cells = [Cell("CCFC", "MNIST p=1"), Cell("k-FED", "MNIST p=1")]
    numbers = ({"clustering/nmi": 0.3}, {"clustering/nmi": 0.4})
    results = tuple(Result(c, 0, n, "a", "d", "") for c, n in zip(cells, numbers, strict=True))
    part = Measurement("ccfc_1", study, "cpu", results)
    assert part.sign("NMI", cells[1]) == "yes"  # the paper's CCFC is below k-FED at p = 1
    assert part.sign("NMI", cells[0]) == "–"
    assert part.sign("Kappa", cells[1]) == "–"
