"""The curves of a run are found in its rows, whoever wrote them."""

from coterie.run.history import curves_of

PLACE = {"stage": "training", "phase": "training", "step": 0, "scope": "server", "seconds": 0.1}
ROWS = [
    {**PLACE, "round": 1, "loss": 2.0, "accuracy": 0.1, "bytes/up": 9, "participants": 3},
    {**PLACE, "round": 1, "scope": "client", "client": 0, "loss": 9.0, "accuracy": 0.9},
    {**PLACE, "round": 2, "loss": None, "clustering/acc": 0.5, "val/val_acc": 0.7, "epsilon": 1.0},
    {"round": 2, "clustering/acc": 0.6, "knn/acc": 0.3, "seconds/total": 3.0},
]


def test_the_loss_the_scores_and_the_users_own_metrics_are_drawn():
    curves, stages = curves_of(ROWS)
    assert curves == {
        "loss": [(1, 2.0)],
        "acc": [(2, 0.5), (2, 0.6)],
        "accuracy": [(1, 0.1)],
        "val/val_acc": [(2, 0.7)],
    }
    assert stages == {"training": 1}
    assert curves_of([]) == ({}, {})


def test_a_methods_own_metrics_are_drawn_in_the_stages_that_have_them_and_its_work_is_not():
    clustering = {**PLACE, "stage": "clustering", "phase": "clustering", "round": 2}
    rows = [
        {**PLACE, "phase": "local training", "round": 1, "entropy": 0, "contrast": 1.0, "steps": 4},
        {**clustering, "entropy": 0.5, "contrast": 2.0, "steps": 4},
        {**clustering, "round": 3, "entropy": 0, "contrast": 0},
    ]
    assert curves_of(rows)[0] == {
        "entropy": [(2, 0.5), (3, 0)],
        "contrast": [(1, 1.0), (2, 2.0), (3, 0)],
    }
    never = [{**PLACE, "round": 1, "found": 0}]
    assert curves_of(never)[0] == {"found": [(1, 0)]}


def test_what_two_phases_report_under_one_name_are_two_curves():
    validated = {**PLACE, "phase": "validation", "round": 1, "accuracy": 0.3}
    curves, _ = curves_of([ROWS[0], validated])
    assert curves["accuracy"] == [(1, 0.1)]
    assert curves["validation/accuracy"] == [(1, 0.3)]


def test_the_last_score_of_a_users_module_ends_its_curve():
    row = {"scope": "server", "stage": "training", "phase": "training"}
    rows = [
        {**row, "round": 1, "val/val_loss": 0.5},
        {**row, "round": 2},
        {"round": 2, "val/val_loss": 0.4, "labels_0.1/acc": 1},
    ]
    assert curves_of(rows)[0] == {"val/val_loss": [(1, 0.5), (2, 0.4)]}
    rows[1]["val/val_loss"] = 0.4
    assert curves_of(rows)[0] == {"val/val_loss": [(1, 0.5), (2, 0.4)]}
