"""The terminal view: what it prints, how wide, how often, and the ETA."""

import io
import logging
import math
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.logging import RichHandler

from coterie.contract.observer import Observer, PhaseRecord
from coterie.contract.phase import Phase
from coterie.tracking.console import ConsoleView
from coterie.tracking.progress import shown_scores

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("CI", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


class Terminal:
    """A view on a terminal or a pipe of some width, with a clock to be set by hand."""

    def __init__(self, mode="auto", *, terminal=False, width=80):
        self.now, self.file = 0.0, io.StringIO()
        console = Console(file=self.file, force_terminal=terminal, width=width)
        self.view: Observer = ConsoleView(mode, console, clock=lambda: self.now)

    @property
    def lines(self):
        return self.file.getvalue().splitlines()

    def round(self, number, seconds=1.0, *, total=10, stage="cluster", cohort=4, **record):
        phase = Phase(name="local training", stage=stage, round=number)
        self.view.phase_started(phase, cohort, total)
        self.now += seconds
        record = {"participants": tuple(range(cohort)), "seconds": seconds, "loss": 1.0} | record
        self.view.phase_finished(PhaseRecord(phase=phase, **record))

    def panel(self):
        """The lines of the panel as it stands."""
        file = io.StringIO()
        Console(file=file, width=self.view.console.width).print(self.view.panel())
        return file.getvalue().splitlines()


def test_a_phase_of_minutes_says_each_minute_that_it_is_under_way(monkeypatch):
    monkeypatch.setattr("coterie.tracking.console._SILENT_S", 0.06)
    terminal = Terminal("lines")
    terminal.view.start("tiny", {})
    terminal.view.phase_started(Phase(name="p", stage="train", round=1), 3, 5)
    terminal.now = 75.0
    until = time.monotonic() + 10
    while len(terminal.lines) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert terminal.lines[1:] == ["round 1/5 train  clients 0/3  under way for 1:15"]
    phase = Phase(name="p", stage="train", round=1)
    terminal.view.phase_finished(PhaseRecord(phase=phase, participants=(0, 1, 2), seconds=75.0))
    terminal.now = 150.0
    while len(terminal.lines) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    assert terminal.lines[3] == "round 1/5 train  trained, what follows  under way for 1:15"
    terminal.view.finish("completed")
    terminal.now = 300.0
    time.sleep(0.1)
    assert terminal.lines[4:] == ["completed"]


def test_the_panel_says_how_long_a_first_round_has_taken():
    terminal = Terminal(terminal=True)
    terminal.view.phase_started(Phase(name="p", stage="train", round=1), 3, 5)
    assert "ETA -" in terminal.panel()[1]
    terminal.now = 75.0
    assert "for 1:15" in terminal.panel()[1]


def test_a_round_without_evaluation_shows_what_clients_hold_out():
    terminal = Terminal()
    phase = Phase(name="validation", stage="training", round=1, open_metrics=True)
    terminal.view.phase_started(phase, 2, 1)
    metrics = {"val/acc": 0.5, "val/loss": 1.25}
    terminal.view.phase_finished(PhaseRecord(phase=phase, participants=(0, 1), metrics=metrics))
    assert "loss -  held out val acc 0.500  held out val loss 1.250  clients" in terminal.lines[-1]


def test_scores_on_the_servers_loader_stand_beside_those_of_what_clients_hold_out():
    phase = Phase(name="validation", stage="training", round=1, open_metrics=True)
    scores, own = {"val/val/acc": 0.25}, {"val/acc": 0.5}
    record = PhaseRecord(phase=phase, participants=(0,), metrics=own, evaluation=scores)
    assert shown_scores(record) == {"held out val acc": 0.5, "validation val acc": 0.25}


def test_a_round_in_lines_mode_is_this_line():
    terminal = Terminal()
    terminal.view.start("tiny", {"method": "FedMCC", "data": "digits"})
    terminal.round(1, 3.0, loss=2.0, bytes_down=2000, bytes_up=1000)
    terminal.round(
        2,
        5.0,
        loss=1.5,
        bytes_down=500,
        bytes_up=500,
        bytes_peer=7,
        evaluation={"clustering/acc": 0.5, "nmi": 0.25},
    )
    assert terminal.lines == [
        "tiny | method FedMCC | data digits",
        "round 1/10 cluster  loss 2.0000  clients 4/4  ETA 27.0 s  down 2.00 kB up 1.00 kB",
        "round 2/10 cluster  loss 1.5000 (falling)  acc 0.500  nmi 0.250  clients 4/4  ETA 32.0 s",
    ]


def test_no_escape_codes_without_a_terminal():
    terminal = Terminal()
    terminal.view.start("[bold]tiny[/bold]", {})
    terminal.round(1, 3.0, failures=("client 1 was dropped.",))
    terminal.view.client_failed(1, "[red]out of memory[/red] :smile:")
    terminal.view.finish("completed", scores={"a": {"ACC": 1.0}}, outputs=[Path("x.png")])
    text = terminal.file.getvalue()
    assert "\x1b" not in text
    assert "[bold]tiny[/bold]" in text
    assert "[red]out of memory[/red] :smile:" in text


numbers = st.floats(0, 1e12) | st.just(math.nan)


@settings(max_examples=50)
@given(
    stage=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1),
    loss=numbers,
    number=st.integers(1, 10**6),
    seconds=st.floats(0, 1e6),
    size=st.integers(0, 10**18),
    scores=st.dictionaries(st.sampled_from("abcdefghijkl"), numbers),
)
def test_a_rounds_line_never_exceeds_a_hundred(stage, number, loss, seconds, scores, size):
    terminal = Terminal()
    terminal.round(
        number,
        seconds,
        total=10**6,
        stage=stage,
        loss=loss,
        evaluation=scores,
        failures=("x",),
        bytes_down=size,
        bytes_up=size,
        bytes_peer=size,
    )
    (line,) = terminal.lines
    assert len(line) <= 100
    assert line.startswith(f"round {number}/1000000 {stage[:10]}")
    assert "FAILED TASKS 1" in line


def rounds_shown(terminal):
    return [int(found[1]) for line in terminal.lines if (found := re.match(r"round (\d+)", line))]


def test_fast_rounds_have_a_line_every_two_seconds_and_the_last_one():
    terminal = Terminal()
    for number in range(1, 101):
        terminal.round(number, 0.25, total=100)
    assert rounds_shown(terminal) == [*range(1, 101, 8), 100]


def test_a_run_that_ends_early_shows_its_last_round():
    terminal = Terminal()
    for number in range(1, 6):
        terminal.round(number, 0.25, total=100)
    terminal.view.note("Evaluating the final model.")
    terminal.view.finish("completed")
    assert rounds_shown(terminal) == [1, 5]
    assert terminal.lines[2:] == ["Evaluating the final model.", "completed"]


def test_stage_changes_evaluations_and_failures_always_show():
    terminal = Terminal()
    events = {5: {"stage": "b"}, 7: {"stage": "b", "evaluation": {"acc": 0.5}}}
    events |= {8: {"stage": "b", "failures": ("client 1 was dropped.",)}}
    for number in range(1, 10):
        terminal.round(
            number, 0.01, **{"stage": "a" if number < 5 else "b", **events.get(number, {})}
        )
    assert rounds_shown(terminal) == [1, 5, 7, 8]
    assert "FAILED TASKS 1" in terminal.lines[3]


def test_a_round_of_several_phases_has_one_line_with_all_its_failures():
    terminal = Terminal()
    for step, failures in enumerate([("a",), (), ("b", "c")]):
        phase = Phase(name="x", stage="s", round=1, step=step, ends_round=step == 2)
        terminal.view.phase_started(phase, 4, 2)
        terminal.now += 2.0
        record = PhaseRecord(phase=phase, participants=(0, 1), failures=failures, bytes_up=1000)
        terminal.view.phase_finished(record)
    line = "round 1/2 s  FAILED TASKS 3  loss -  clients 2/4  ETA 6.0 s  down 0 B up 3.00 kB"
    assert terminal.lines == [line]


def test_failed_tasks_are_listed_up_to_five_a_round():
    terminal = Terminal()
    for number in (1, 2):
        phase = Phase(name="x", stage="s", round=number)
        terminal.view.phase_started(phase, 200, 2)
        for client in range(100):
            terminal.view.client_failed(client, f"out of\nmemory {'x' * 200} {client}")
        terminal.view.phase_finished(PhaseRecord(phase=phase, participants=()))
    assert len(terminal.lines) == 2 * 7
    assert terminal.lines[4].startswith("client 4 failed: out of memory xxx")
    assert max(map(len, terminal.lines)) == 100
    assert terminal.lines[5] == "further failures of this round are counted, not listed"


def test_a_failure_that_other_clients_share_is_told_once_a_round():
    terminal = Terminal()
    for number in (1, 1, 2):  # two phases of a round, then another round
        phase = Phase(name="x", stage="s", round=number)
        terminal.view.phase_started(phase, 4, 2)
        for client in range(4):
            terminal.view.client_failed(client, "no metric")
    terminal.view.client_failed(3, "no memory")
    told = [f"client {n} failed: no {what}" for n, what in ((0, "metric"), (0, "metric"))]
    assert terminal.lines == [*told, "client 3 failed: no memory"]


def test_eta_is_the_mean_of_the_stages_last_ten_rounds_with_what_lies_between():
    terminal = Terminal()
    terminal.round(1, 100.0, total=50)
    for number in range(2, 12):
        terminal.now += 0.5  # an evaluation or a checkpoint
        terminal.round(number, 3.5, total=50)
    assert "ETA 2:36" in terminal.lines[-1]  # 39 rounds of 4 s: the slow first one is forgotten
    terminal.now += 0.5
    terminal.round(12, 1.0, total=50, stage="next")
    assert "ETA 38.0 s" in terminal.lines[-1]  # 38 rounds of 1 s: the first stage is forgotten


def test_eta_is_open_if_nobody_knows_the_number_of_rounds():
    terminal = Terminal()
    terminal.round(3, total=None)
    assert terminal.lines == ["round 3 cluster  loss 1.0000  clients 4/4  ETA -  down 0 B up 0 B"]


def test_the_trend_compares_with_the_stages_recent_losses():
    terminal = Terminal()
    for number, loss in enumerate([4.0, 2.0, 1.0, 5.0], start=1):
        terminal.round(number, 3.0, loss=loss, stage="next" if number == 4 else "first")
    assert "loss 1.0000 (falling)" in terminal.lines[2]
    assert "loss 5.0000  clients" in terminal.lines[3]


def test_losses_that_look_alike_have_no_trend():
    terminal = Terminal()
    for number, loss in enumerate([2.00001, 2.00002], start=1):
        terminal.round(number, 3.0, loss=loss)
    assert "loss 2.0000  clients" in terminal.lines[1]


def test_the_panel_shows_the_state_in_six_lines_of_eighty_columns():
    terminal = Terminal("live", terminal=True, width=120)
    terminal.view.title = "tiny"
    terminal.round(1, 2.0, loss=2.0, bytes_down=2000, evaluation={"acc": 0.5})
    terminal.view.phase_started(Phase(name="local training", stage="cluster", round=2), 4, 10)
    terminal.now += 4.0
    for client in (0, 3, 0):  # client 0 ran again after its actor was lost
        terminal.view.client_done(client, {"loss": 1.0})
    terminal.view.client_failed(1, "out of memory")
    lines = terminal.panel()
    assert [len(line) for line in lines] == [80] * 6
    inside = [line.strip("│ ") for line in lines]
    assert " tiny " in inside[0]
    assert inside[1] == "cluster / local training  round 2/10  ETA 18.0 s"
    assert inside[3] == "loss 2.0000  acc 0.500"
    assert inside[4] == "clients 2/4 failed 1  0.5 clients/s  down 2.00 kB up 0 B"


@pytest.mark.parametrize(("rounds", "cells"), [(0, 0), (1, 19), (2, 38), (4, 76)])
def test_the_bar_is_filled_by_finished_rounds(rounds, cells):
    terminal = Terminal("live", terminal=True)
    for number in range(1, rounds + 1):
        terminal.round(number, total=4)
    terminal.view.phase_started(Phase(name="x", stage="s", round=rounds + 1), 4, 4)
    assert terminal.panel()[2].count("━") == cells


def test_a_narrow_terminal_cuts_instead_of_wrapping():
    terminal = Terminal("live", terminal=True, width=30)
    terminal.round(1, 2.0, evaluation=dict.fromkeys("abcdefgh", 0.5), stage="s" * 50)
    assert [len(line) for line in terminal.panel()] == [30] * 6


@pytest.mark.parametrize("is_terminal", [True, False])
def test_warnings_scroll_above_the_panel_unless_they_go_elsewhere(is_terminal):
    errors = Console(file=io.StringIO(), force_terminal=is_terminal, width=80)
    handler = RichHandler(console=errors, show_path=False)
    logging.getLogger().addHandler(handler)
    try:
        terminal = Terminal(terminal=True)
        terminal.view.start("tiny", {})
        terminal.round(1, 5.0)
        logging.getLogger("x").warning("knn_k is large")
        terminal.view.finish("completed")
        assert handler.console is errors
    finally:
        logging.getLogger().removeHandler(handler)
    above, elsewhere = terminal.file.getvalue(), errors.file.getvalue()
    assert ("knn_k is large" in above) == is_terminal
    assert ("knn_k is large" in elsewhere) != is_terminal


def test_live_draws_the_panel_and_scrolls_events_above_it():
    terminal = Terminal(terminal=True)
    terminal.view.start("tiny", {"method": "FedMCC"})
    for number in range(1, 4):
        terminal.round(number, 5.0, evaluation={"acc": 0.5} if number == 2 else None)
    terminal.view.note("resumed from round 7")
    terminal.view.finish("completed")
    lines = [ANSI.sub("", line).strip() for line in terminal.lines]
    assert {"tiny | method FedMCC", "resumed from round 7"} <= set(lines)
    assert lines[-1] == "completed"
    assert any(line.startswith("│ cluster / local training  round 3/10") for line in lines)
    assert {line[:10] for line in lines if line.startswith("round ")} == {"round 2/10"}


def test_auto_is_lines_in_ci_and_on_a_dumb_terminal(monkeypatch):
    modes = [Terminal(terminal=terminal).view.mode for terminal in (True, False)]
    for name, value in (("CI", "true"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            modes.append(Terminal(terminal=True).view.mode)
    assert modes == ["live", "lines", "lines", "lines"]


def test_none_is_silent():
    terminal = Terminal("none", terminal=True)
    terminal.view.start("tiny", {"a": "b"})
    terminal.round(1, evaluation={"acc": 0.5}, failures=("x",))
    terminal.view.client_failed(1, "x")
    terminal.view.note("x")
    terminal.view.finish("failed", error="x", scores={"a": {"ACC": 1.0}}, outputs=[Path("x")])
    assert terminal.lines == []


def test_the_end_says_why_compares_and_names_the_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    terminal = Terminal()
    scores = {"FedMCC": {"ACC": 0.9, "NMI": 0.8}, "k-means on pixels": {"ACC": 0.5, "NMI": 0.4}}
    outputs = [tmp_path / "runs" / "curves.png", Path("/elsewhere/x.png")]
    terminal.view.finish("failed", error="No actors left.", scores=scores, outputs=outputs)
    assert terminal.lines[0] == "failed: No actors left."
    assert ["FedMCC", "0.900", "0.800"] in [line.split() for line in terminal.lines]
    assert terminal.lines[-2:] == ["runs/curves.png", "/elsewhere/x.png"]
