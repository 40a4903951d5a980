"""Relevance of pretraining data: `python -m ray_jobs.relevance pretrained=DIR experiment=NAME`."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, PositiveInt
from rich.console import Console

from coterie.commands.arguments import read_values
from coterie.commands.compose import compose
from coterie.commands.program import run_command, run_program
from coterie.config.component import Component
from coterie.config.loading import load_component, load_config
from coterie.config.schema import RunConfig
from coterie.errors import DataError
from coterie.tracking.run_directory import RunDirectory

_HELP = """\
usage: python -m ray_jobs.relevance pretrained=DIR [samples=300] experiment=NAME
         [GROUP=CHOICE ...] [KEY=VALUE ...]

Embeds random samples of the data that the run in DIR was trained on, and as
many of the clients' data of an experiment, with the run's encoder, and prints
the mean cosine across the two: CP-CFL's measure of how relevant the one is to
the other, 1 at most. The experiments and keys are those of
python -m ray_jobs.train --help.
"""


class RelevanceConfig(Component):
    """What to compare."""

    pretrained: Annotated[str, Field(min_length=1)]
    """The folder of the run that trained the encoder."""
    samples: PositiveInt = 300
    """Samples drawn of each data set."""


def main(arguments: Sequence[str]) -> int:
    """Print the relevance of what the arguments name.

    Returns:
        The exit code: 0 done; 2 arguments or data refused.
    """
    return run_command(_relevance, arguments, lambda *_: _HELP)


def _relevance(arguments: Sequence[str]) -> int:
    own = tuple(f"{name}=" for name in RelevanceConfig.model_fields)
    options = load_component(
        RelevanceConfig, read_values([text for text in arguments if text.startswith(own)])
    )
    clients = compose(*(text for text in arguments if not text.startswith(own)))
    earlier = load_config(RunDirectory.open(options.pretrained, key="pretrained").read_config())
    value = _measure(options, earlier, clients)
    Console().print(f"relevance {value:.4f}", highlight=False)
    return 0


def _measure(options: RelevanceConfig, earlier: RunConfig, clients: RunConfig) -> float:
    # Imported only now: a mistyped key is answered at once, not after PyTorch has loaded.
    import numpy as np

    from coterie.contract.seeds import derive_seed
    from coterie.models.loading import load_model
    from coterie.run.data import read_and_split
    from coterie.run.pretraining_relevance import embedded_sample, mean_cross_cosine

    encoder = load_model(options.pretrained).encoder
    sampled, shapes = [], []
    for purpose, config in (("pretraining", earlier), ("clients", clients)):
        data, parts = read_and_split(config)
        shapes.append(data.shape)
        if shapes[-1] != shapes[0]:
            raise DataError(
                f"pretrained={options.pretrained}: its samples are {shapes[0]}, the clients' "
                f"{shapes[-1]}; set data.size to that of the pretraining."
            )
        seed = derive_seed(clients.seed, "relevance", purpose)
        rows = np.concatenate(parts)
        sampled.append(embedded_sample(encoder, data.samples, rows, options.samples, seed))
    return mean_cross_cosine(*sampled)


if __name__ == "__main__":
    run_program(main)
