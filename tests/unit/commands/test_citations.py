"""Every method of Coterie that has a paper is cited by it."""

import re

from coterie.commands.citations import citations, papers
from coterie.commands.compose import groups, read_choice
from coterie.jobs.cite import main

OWN = {"Concord", "Prototypes", "KMeans"}
"""Of Coterie itself, or without a paper."""


def test_every_method_has_a_paper_and_every_paper_a_method():
    targets = {read_choice("method", name)["target"] for name in groups()["method"]}
    assert {target.rpartition(":")[2] for target in targets} - OWN == papers().keys()


def test_entries_are_whole():
    for entry in {entry for entries in papers().values() for entry in entries}:
        assert re.match(r"@\w+\{\w+,\n  title = \{.+\},\n  author = \{.+\},\n", entry)
        assert entry.count("{") == entry.count("}")
        assert "keywords" not in entry


def test_a_strangers_method_of_the_same_name_is_not_cited():
    assert "miao2022fedmcc" in citations("coterie.modules.fedmcc:FedMCC")
    assert citations("mine:FedMCC") == citations("coterie.modules.kmeans:KMeans")


def test_the_command_takes_a_run_or_a_method(finished_run, capsys):
    assert main([f"run={finished_run.run_dir}"]) == 0
    of_run = capsys.readouterr().out
    assert main(["method=fedmcc"]) == 0
    assert capsys.readouterr().out == of_run
    assert of_run.startswith("@software{coterie,")
    assert main([]) == main(["method=fedmcc", "run=x"]) == main(["method=nosuch"]) == 2
