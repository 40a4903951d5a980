"""Whole runs with compressed updates: fewer bytes, the same bits after a stop, what is refused."""

import json

import pytest

from coterie import Federation
from coterie.commands.compose import compose
from coterie.errors import ConfigError
from tests.builders.every_method import small
from tests.builders.runs import SERIAL, model_files


def train(folder, *keys):
    return Federation(compose(*small("fedavg"), *keys, *SERIAL, f"run_dir={folder}")).run()


def sent(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").open())
    return sum(row["bytes/up"] for row in lines if row.get("scope") == "server")


def test_int8_sends_a_quarter_and_topk_its_share(tmp_path):
    kinds = {
        "plain": (),
        "int8": ("aggregation.compression=int8",),
        "topk": ("aggregation.compression=topk", "aggregation.keep=0.01"),
    }
    for name, keys in kinds.items():
        train(tmp_path / name, *keys)
    plain, int8, topk = (sent(tmp_path / name) for name in kinds)
    assert 0.25 < int8 / plain < 0.35
    assert topk / plain < 0.1
    assert model_files(tmp_path / "int8") != model_files(tmp_path / "plain")


def test_what_topk_has_not_sent_goes_on_after_a_resume(tmp_path):
    keys = ("aggregation.compression=topk", "aggregation.keep=0.02", "checkpoint.every=1")
    train(tmp_path / "whole", *keys, "method.rounds=3")
    train(tmp_path / "two", *keys, "method.rounds=1")
    train(tmp_path / "two", *keys, "method.rounds=3", "resume=true")
    assert model_files(tmp_path / "two") == model_files(tmp_path / "whole")


def test_masks_refuse_it_before_the_run(tmp_path):
    with pytest.raises(ConfigError, match=r"compression=int8: under privacy\.secure_aggregation"):
        train(tmp_path / "r", "aggregation.compression=int8", "privacy.secure_aggregation=true")
    assert not (tmp_path / "r").exists()
