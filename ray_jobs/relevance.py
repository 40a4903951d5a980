"""Relevance of pretraining data: `coterie relevance pretrained=DIR experiment=NAME`."""

from collections.abc import Sequence

from pydantic import PositiveInt

from coterie.commands.arguments import read_values, separate
from coterie.commands.changed_config import load_stored
from coterie.commands.compose import compose
from coterie.commands.program import run_command, run_program
from coterie.config.component import Component, NotEmpty
from coterie.config.loading import load_component
from coterie.config.trust import Trust
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.terminal import Terminal

_HELP = """\
usage: coterie relevance pretrained=DIR [samples=300] [trust=PACKAGE]
         experiment=NAME [GROUP=CHOICE ...] [KEY=VALUE ...]

Prints CP-CFL's measure of how relevant pretraining data is to the clients'
data, at most 1: the mean cosine between the representations of random samples
of both, by the encoder of the run in DIR. It draws `samples` of the data of
that run and as many of the experiment's clients. For the experiments and keys
see coterie train --help.
"""


class RelevanceConfig(Component):
    """What to compare."""

    pretrained: NotEmpty
    """The folder of the run that trained the encoder."""
    samples: PositiveInt = 300
    """Samples drawn from each data set."""
    trust: Trust = ()
    """Packages that stored configs may import, in addition to Coterie's own."""


def main(arguments: Sequence[str]) -> int:
    """Print the relevance that the arguments ask for."""
    return run_command(_relevance, arguments, lambda *_: _HELP)


def _relevance(arguments: Sequence[str]) -> int:
    own, rest = separate(arguments, RelevanceConfig.model_fields)
    options = load_component(RelevanceConfig, read_values(own))
    clients = compose(*rest, f"trust=[{','.join(options.trust)}]")
    earlier = load_stored(RunDirectory.open(options.pretrained, key="pretrained"), options.trust)
    from coterie.run.pretraining_relevance import pretraining_relevance

    value = pretraining_relevance(options.pretrained, earlier, clients, options.samples)
    Terminal().print(f"relevance {value:.4f}", highlight=False)
    return 0


if __name__ == "__main__":
    run_program(main)
