"""Pretrain an encoder: `coterie pretrain experiment=simclr_fashionmnist out=DIR`."""

from collections.abc import Sequence

from coterie.commands.arguments import separate
from coterie.commands.compose import compose
from coterie.commands.program import run_command, run_program
from coterie.errors import ConfigError
from coterie.tracking.terminal import Terminal

_HELP = """\
usage: coterie pretrain experiment=NAME out=DIR
         [GROUP=CHOICE ...] [KEY=VALUE ...]

Trains an experiment, such as simclr_fashionmnist, in out=DIR, and resumes the
run that is there. Other runs use the encoder with
encoder=pretrained encoder.path=DIR, frozen, or with encoder.freeze=false as
initial weights. For the experiments and keys see
coterie train --help.
"""


def main(arguments: Sequence[str]) -> int:
    """Train the encoder that the arguments ask for."""
    return run_command(_pretrain, arguments, lambda *_: _HELP)


def _pretrain(arguments: Sequence[str]) -> int:
    outs, rest = separate(arguments, {"out"})
    if not outs:
        raise ConfigError("out: none is given; name the folder for the encoder as out=DIR.")
    own = (f"run_dir={outs[-1].partition('=')[2]}", "resume=true")
    config = compose("tracking.wandb.job_type=pretrain", *rest, *own)
    from coterie.run.federation import Federation

    done = Federation(config).run()
    Terminal(soft_wrap=True).print(
        f"encoder=pretrained encoder.path={done.run_dir}", highlight=False
    )
    return done.exit_code


if __name__ == "__main__":
    run_program(main)
