"""Export a model for other programs: `coterie export model=RUN format=onnx`."""

from collections.abc import Sequence
from typing import Literal

from coterie.commands.arguments import read_values
from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.config.component import Component, NotEmpty
from coterie.config.given_path import given_path
from coterie.config.loading import load_component
from coterie.config.trust import Trust
from coterie.tracking.paths import check_contained, check_ours, check_replaceable, local_path
from coterie.tracking.terminal import Terminal


class ExportConfig(Component):
    """What to export, and how."""

    model: NotEmpty
    """A finished run's folder, or its `model/`."""
    format: Literal["onnx", "pt2"] = "onnx"
    """`onnx`: for ONNX Runtime and others; `pt2`: for PyTorch without Coterie, which a run also
    writes."""
    out: NotEmpty | None = None
    """The file; by default `model.onnx` or `model.pt2` beside the weights."""
    trust: Trust = ()
    """Packages that the model's config may import, in addition to Coterie's own."""


@command(
    "Writes a run's model as a file that runs without Coterie: it maps samples, in batches "
    "of any size, to embeddings and cluster probabilities.",
    "usage: coterie export model=RUN [format=onnx] [out=FILE]",
    ExportConfig,
)
def main(arguments: Sequence[str]) -> int:
    """Export the model that the arguments name."""
    options = load_component(ExportConfig, read_values(arguments))
    from coterie.models.loading import load_model
    from coterie.models.onnx_file import check_onnx_installed, write_onnx
    from coterie.models.saved_model import example_samples, model_folder, read_description
    from coterie.models.saved_program import write_program_file

    if options.format == "onnx":
        check_onnx_installed()
    folder = model_folder(options.model)
    out = given_path("out", options.out) if options.out else folder / f"model.{options.format}"
    if options.out is None:
        check_contained("model", local_path("model", options.model))
        check_ours("model", folder)
    check_replaceable("out", out)
    model, samples = load_model(folder, options.trust), example_samples(read_description(folder))
    said = str(out)
    if options.format == "pt2":
        write_program_file(out, model, samples[:1])
    else:
        apart = write_onnx(out, model, samples)
        how = f"but for {apart:.1g} of the largest" if apart else "to the bit"
        said += f": ONNX Runtime gives PyTorch's outputs, {how}"
    Terminal(soft_wrap=True, highlight=False).print(said)
    return 0


if __name__ == "__main__":
    run_program(main)
