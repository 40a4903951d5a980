from pathlib import Path

from coterie.commands.compose import compose
from coterie.studies.plan import Variant
from coterie.studies.processes import PlannedRun


def group_of(*overrides):
    config = compose("experiment=fedmcc_digits", *overrides)
    run = PlannedRun(
        variant=Variant("a", "fedmcc_digits", overrides),
        seed=3,
        folder=Path("/x/it's one/runs/a,seed=3"),
        config=config,
    )
    child = compose(*run.command[4:])  # after python -P -m module
    return child.tracking.wandb.group


def test_the_runs_of_a_study_share_a_group_on_wandb_unless_the_config_names_one():
    assert group_of("tracking=wandb") == "comparison-it's one"
    assert group_of("tracking=wandb", "tracking.wandb.group=mine") == "mine"
    assert group_of("tracking=csv") is None
