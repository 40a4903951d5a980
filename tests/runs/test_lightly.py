"""Each module of lightly's examples federates as it is.

`LIGHTLY_EXAMPLES` names the folder examples/pytorch_lightning of a clone of lightly;
docs/lightning.md has the table of what runs.
"""

import pytest
import torch

from tests.builders.lightly_examples import VARIABLE, examples

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(1800)]

NO_MODULE = ("ijepa",)
"""Scripts that only refer to an example without Lightning."""

CLIPPED = {"barlowtwins": {"gradient_clip_val": 0.5}}
"""Its rate is for batches of 256: with 8, statistics reach 2e8 under a plain Trainer too."""

ACTORS = {"num_actors": 2, "cpus_per_client": 0.5}
ON_ACTORS = ("byol", "dcl", "densecl", "detcon", "fastsiam", "fda", "simclr")
"""Examples that run on two actors; the others in this process, which gives the same bits."""

NAMES = sorted(set(examples()) - set(NO_MODULE))


@pytest.mark.skipif(not NAMES, reason=f"{VARIABLE} names no folder")
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_an_example_federates_as_it_is(tmp_path, name):
    pytest.importorskip("lightly")
    from coterie import Federation
    from tests.builders.lightly_examples import open_example

    module, loader, arguments = open_example(examples()[name])
    run = Federation(
        module=module,
        data=loader,
        clients=2,
        rounds=2,
        trainer=arguments | CLIPPED.get(name, {}),
        cluster=ACTORS if name in ON_ACTORS else {"backend": "serial"},
        run_dir=tmp_path,
        overrides=["tracking.progress=none", "evaluation.figures=false", "checkpoint.every=0"],
    ).run()
    assert run.exit_code == 0
    assert not run.failures
    before, after = module.state_dict(), run.module.state_dict()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert moved
