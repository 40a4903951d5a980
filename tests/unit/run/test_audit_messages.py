"""What a run's messages add up to, over its phases."""

import io
import json

import pytest
from rich.console import Console

from coterie.errors import DataError
from coterie.evaluation.membership import Membership
from coterie.run.audit_messages import audited_keys
from coterie.run.audit_tables import attacks_table, messages_table


def message(**changed):
    sent = {"type": "slot", "key": "sums", "spec": "float64 (4, 3)", "clients": 2, "bytes": 96}
    return {**sent, "samples": 5, "summed": 2, **changed}


def audited(tmp_path, *phases):
    path = tmp_path / "metrics.jsonl"
    rows = [{"scope": "messages", "messages": messages} for messages in phases]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return audited_keys(path)


def test_the_fewest_samples_and_the_smallest_sum_of_all_phases_count(tmp_path):
    phases = [
        [message()],
        [message(samples=2, summed=1, clients=3, spec="float64 (8, 3)")],
        [message(samples=None), message(type="gathered", key="points", samples=None)],
    ]
    slot, record = audited(tmp_path, *phases)
    assert (slot.samples, slot.summed, slot.clients) == (2, 1, 3)
    assert (slot.phases, slot.bytes) == (3, 3 * 96)
    assert slot.specs == ("float64 (4, 3)", "float64 (8, 3)")
    assert (record.key, record.phases, record.samples) == ("points", 1, None)


@pytest.mark.parametrize(
    "changed", [{"key": 1}, {"clients": "x"}, {"samples": "5"}, {"bytes": None}, {"spec": ["x"]}]
)
def test_messages_of_other_kinds_are_refused(tmp_path, changed):
    with pytest.raises(DataError, match="its messages are damaged"):
        audited(tmp_path, [message(**changed)])


def test_a_key_is_shown_as_it_is_without_escapes(tmp_path):
    console = Console(width=80, record=True, file=io.StringIO())
    keys = audited(tmp_path, [message(key="[/a]"), message(key="\x1b]0;owned\x07")])
    console.print(messages_table(keys))
    shown = console.export_text()
    assert "[/a]" in shown
    assert "?]0;owned?" in shown
    assert "\x1b" not in shown


def test_eighty_columns_show_attacks_whole():
    console = Console(width=80, record=True, file=io.StringIO())
    scored = {"auc": 0.5, "auc_interval": (0.45, 0.55), "tpr": 0.01, "tpr_interval": (0.0, 0.03)}
    found = Membership(members=1_000_000, others=100_000, **scored)
    console.print(attacks_table({"views, untrained": found}))
    shown = console.export_text()
    assert "…" not in shown
    for text in ("1,000,000", "100,000", "0.500 (0.450-0.550)", "0.010 (0.000-0.030)"):
        assert text in shown


def test_a_narrow_terminal_shows_keys_and_numbers_whole(tmp_path):
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(messages_table(audited(tmp_path, [message(key="encoder")]), 60))
    shown = console.export_text().split()
    assert {"slot", "encoder", "fewest"} <= set(shown)
    assert "spec" not in shown


def test_a_key_behind_no_sum_has_no_word_of_sums(tmp_path):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(messages_table(audited(tmp_path, [message(summed=0)])))
    assert "sum" not in console.export_text().replace("sums", "")
    console.print(messages_table(audited(tmp_path, [message()])))
    told = " ".join(console.export_text().split())
    assert "5 of 2: behind a sum over 2 clients, which is all that the server reads" in told


def test_a_file_without_messages_is_refused(tmp_path):
    with pytest.raises(DataError, match="it does not say what clients sent"):
        audited(tmp_path)
