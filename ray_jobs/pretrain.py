"""Pretrain an encoder: `python -m ray_jobs.pretrain experiment=simclr_fashionmnist out=DIR`."""

from collections.abc import Sequence

from rich.console import Console

from coterie.commands.compose import compose
from coterie.commands.program import run_command, run_program
from coterie.errors import ConfigError

_OUT = "out="
_HELP = """\
usage: python -m ray_jobs.pretrain experiment=NAME out=DIR
         [GROUP=CHOICE ...] [KEY=VALUE ...]

Trains an experiment, such as simclr_fashionmnist, into out=DIR and goes on with
what is there already. Any other run then takes the encoder that it leaves with
encoder=pretrained encoder.path=DIR, frozen, or with encoder.freeze=false as its
start. The experiments and keys are those of python -m ray_jobs.train --help.
"""


def main(arguments: Sequence[str]) -> int:
    """Train the encoder that the arguments ask for.

    Returns:
        The exit code, as of `ray_jobs.train`.
    """
    return run_command(_pretrain, arguments, lambda *_: _HELP)


def _pretrain(arguments: Sequence[str]) -> int:
    outs = [argument for argument in arguments if argument.startswith(_OUT)]
    if not outs:
        raise ConfigError("out: none is given; name the folder for the encoder as out=DIR.")
    rest = (argument for argument in arguments if argument not in outs)
    config = compose(*rest, f"run_dir={outs[-1].removeprefix(_OUT)}", "resume=true")
    # Imported only now: a mistyped key is answered at once, not after PyTorch has loaded.
    from coterie.run.federation import Federation

    done = Federation(config).run()
    Console(soft_wrap=True).print(
        f"encoder=pretrained encoder.path={done.run_dir}", highlight=False, markup=False
    )
    return done.exit_code


if __name__ == "__main__":
    run_program(main)
