"""Every method of Coterie that has a paper is cited by it."""

import re

from coterie.commands.citations import citations, papers
from coterie.commands.compose import groups, read_choice
from coterie.jobs.cite import main

OWN = {"Concord", "Prototypes"}
"""Coterie's own, whose citation is Coterie's."""
STRATEGIES = {"FedProx", "Scaffold", "FedNova", "FedDyn"}
FIELDS = re.compile(r"  (\w+) = \{(.+)\},?")


def test_every_method_has_a_paper_and_every_paper_a_method():
    targets = {read_choice("method", name)["target"] for name in groups()["method"]}
    methods = {target.rpartition(":")[2] for target in targets}
    assert methods - OWN | STRATEGIES == papers().keys()


def test_entries_are_whole():
    for entry in {entry for entries in papers().values() for entry in entries}:
        first, *rows, last = entry.splitlines()
        assert re.fullmatch(r"@(article|inproceedings)\{\w+,", first)
        assert last == "}"
        fields = dict(FIELDS.fullmatch(row).groups() for row in rows)
        assert {"title", "author", "year"} <= fields.keys()
        assert "keywords" not in fields
        assert ("journal" in fields) != ("booktitle" in fields)
        assert all(", " in author for author in fields["author"].split(" and "))
        assert "others" not in fields["author"]
        assert entry.count("{") == entry.count("}")


def test_a_strategy_is_cited_beside_federated_averaging():
    used = ("lightning_module:Lightning", "strategies.fedprox:FedProx")
    both = citations(*(f"coterie.modules.{target}" for target in used))
    assert "mcmahan2017fedavg" in both
    assert "li2020fedprox" in both


def test_a_strangers_method_of_the_same_name_is_not_cited():
    assert "miao2022fedmcc" in citations("coterie.modules.fedmcc:FedMCC")
    assert citations("mine:FedMCC") == citations("coterie.modules.concord:Concord")


def test_the_command_takes_a_run_or_a_method(finished_run, capsys):
    assert main([f"run={finished_run.run_dir}"]) == 0
    of_run = capsys.readouterr().out
    assert main(["method=fedmcc"]) == 0
    assert capsys.readouterr().out == of_run
    assert of_run.startswith("@software{coterie,")
    assert main([]) == main(["method=fedmcc", "run=x"]) == main(["method=nosuch"]) == 2
