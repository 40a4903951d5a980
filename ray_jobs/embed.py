"""Embed a data set once: `coterie embed data=CHOICE encoder=CHOICE out=DIR`."""

from collections.abc import Collection, Sequence
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.commands.compose import compose_sections
from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.config.component import Component, NotEmpty, load_target, target_of
from coterie.config.given_path import given_path
from coterie.config.loading import load_component, section_model
from coterie.config.schema import Threads
from coterie.config.trust import Trust
from coterie.errors import ConfigError
from coterie.tracking.terminal import Terminal

_ABOUT = (
    "Writes the representations of a data set by any encoder, once, as shards of vectors. Methods "
    "then train on them with data=shards data.path=OUT. Started again after it was stopped, it "
    "goes on where it was."
)
_USAGE = (
    "usage: coterie embed data=CHOICE encoder=CHOICE out=DIR [KEY=VALUE ...]\n"
    "       (coterie train --help data=CHOICE encoder=CHOICE lists their keys)"
)


class EmbedConfig(Component):
    """Where to write the embeddings, and how."""

    out: NotEmpty
    """The folder to write: a new one, or that of the same command before."""
    batch_size: PositiveInt = 256
    """Samples that pass through the encoder at a time."""
    shard_samples: PositiveInt = 4096
    """Samples per shard; an unfinished shard is computed again."""
    seed: NonNegativeInt = 0
    """Seed of an encoder's random weights."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; `auto` takes a GPU if there is one."""
    threads: Threads = 1
    """CPU threads of PyTorch; another number changes the bits."""
    trust: Trust = ()
    """Packages that a pretrained encoder's config may import, in addition to Coterie's own."""


@command(_ABOUT, _USAGE, EmbedConfig)
def main(arguments: Sequence[str]) -> int:
    """Embed the data set that the arguments name."""
    values = compose_sections(("data", "encoder"), arguments)
    sections = {name: values.pop(name) for name in ("data", "encoder")}
    options = load_component(EmbedConfig, values)
    config, chosen = (_section(*named, options.trust) for named in sections.items())
    import torch

    from coterie.contract.data import DataModule
    from coterie.contract.data_checks import check_data
    from coterie.contract.seeds import seeded
    from coterie.datamodules.embeddings import Embedder, claim
    from coterie.execution.device import check_device, device_of

    out = given_path("out", options.out)
    recipe = {
        name: {"target": target_of(component), **component.model_dump(mode="json")}
        for name, component in (("data", config), ("encoder", chosen))
    }
    decides = options.model_dump(include={"batch_size", "shard_samples", "seed", "threads"})
    device = device_of(options.accelerator)
    check_device(options.accelerator, device)
    torch.set_num_threads(options.threads)
    done = claim(out, {**recipe, **decides})
    if not done:
        module: DataModule = load_target(target_of(config))(config)
        data = module.arrays()
        check_data(data)
        with seeded(options.seed):
            encoder = chosen.build(data.shape)  # type: ignore[attr-defined]  # as of an encoder
        total = len(data.samples) + (0 if data.test_samples is None else len(data.test_samples))
        columns = (TextColumn("embedding"), BarColumn(), MofNCompleteColumn())
        console = Terminal(stderr=True)
        with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
            task = progress.add_task("", total=total)
            embedder = Embedder(
                encoder=encoder.eval().to(device),
                device=device,
                batch_size=options.batch_size,
                shard_samples=options.shard_samples,
                watch=lambda samples: progress.advance(task, samples),
            )
            embedder.write(out, data)
    Terminal(soft_wrap=True).print(f"data=shards data.path={out}", highlight=False)
    return 0


def _section(name: str, section: dict[str, object], trust: Collection[str]) -> Component:
    """Return the validated config of one section."""
    model = section_model(name, section)
    own = {key: value for key, value in section.items() if key != "target"}
    found = load_component(model, own, f"{name}.", trust)
    if name == "encoder" and not callable(getattr(found, "build", None)):
        raise ConfigError(
            f"encoder.target={target_of(found)}: it has no method build; see docs/encoders.md."
        )
    return found


if __name__ == "__main__":
    run_program(main)
