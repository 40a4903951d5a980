"""Checks that an encoder's per-sample gradients do not mix samples, before private training.

Opacus takes a layer's first axis for the samples. Where it is another one of the same length, or
where samples meet in the forward pass, a sample is in several "per-sample" gradients, and the clip
norm no longer bounds what it adds. So the gradients from the hooks are compared with those of each
sample alone.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from coterie.errors import ConfigError, reason

_SAMPLES = 2
_TOLERANCE = 1e-3
"""Largest difference from a sample's own gradient, relative to that gradient's norm."""
_RANDOM = ("Dropout", "DropPath", "StochasticDepth")


def check_own_gradients(encoder: nn.Module, shape: tuple[int, ...]) -> None:
    """Refuse an encoder whose per-sample gradients mix samples, or that stores samples.

    Args:
        encoder: The network as it trains; it stays as it is.
        shape: A sample's shape.

    Raises:
        ConfigError: Naming the layer.
    """
    if not any(parameter.requires_grad for parameter in encoder.parameters()):
        return
    for name, kept in _trained_once(encoder, shape).named_buffers():
        if not torch.equal(kept, encoder.get_buffer(name).to(kept)):
            raise ConfigError(
                f"privacy.dp.unit=sample: training changes the encoder's buffer {name}, which no "
                "noise protects; choose a network that changes its parameters alone."
            )
    for name, gap in _gaps(encoder, shape):
        if not gap <= _TOLERANCE:
            raise ConfigError(
                f"privacy.dp.unit=sample: Opacus' gradients of the encoder's {name} are not those "
                "of each sample alone, so they cannot be clipped; choose a network without "
                "operations across samples."
            )


def sample_hooks(module: nn.Module, reduction: Literal["mean", "sum"]) -> Callable[[], None]:
    """Attach Opacus' hooks, which write each sample's gradient to a parameter's `grad_sample`.

    Args:
        module: The module; its activations write into new tensors meanwhile, as hooks need it.
        reduction: How the loss combines samples.

    Returns:
        What makes the module as it was.
    """
    from opacus.grad_sample import GradSampleHooks  # seconds that only private training needs

    GradSampleHooks.GRAD_SAMPLERS[nn.Conv2d] = _gradients_of_convolution
    overwriting = [part for part in module.modules() if getattr(part, "inplace", False) is True]
    for part in overwriting:
        part.inplace = False  # type: ignore[assignment]
    hooks = GradSampleHooks(module, loss_reduction=reduction, strict=False)

    def undo() -> None:
        hooks.cleanup()
        for part in overwriting:
            part.inplace = True  # type: ignore[assignment]

    return undo


def _gradients_of_convolution(
    layer: nn.Conv2d, activations: Sequence[Tensor], backprops: Tensor
) -> Mapping[nn.Parameter, Tensor]:
    """Return Opacus' gradients of contiguous images: Opacus 1.6 mixes samples in channels last."""
    from opacus.grad_sample.conv import compute_conv_grad_sample

    found: Mapping[nn.Parameter, Tensor] = compute_conv_grad_sample(
        layer, [activations[0].contiguous()], backprops
    )
    return found


def _trained_once(encoder: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    probe = copy.deepcopy(encoder).double().train()
    with torch.no_grad():
        probe(_draw(_SAMPLES, *shape).double())
    return probe


def _gaps(encoder: nn.Module, shape: tuple[int, ...]) -> Iterator[tuple[str, float]]:
    """Yield the difference of each parameter's gradients by Opacus to those of single samples."""
    probe, alone = _deterministic(encoder), _deterministic(encoder)
    samples = _draw(_SAMPLES, *shape).double()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook|grad and param")
        try:
            sample_hooks(probe, "sum")
            together = probe(samples)
            directions = _draw(*together.shape).double()
            (together * directions).sum().backward()
        except Exception as error:  # Opacus and PyTorch raise what they like
            raise ConfigError(
                "privacy.dp.unit=sample: Opacus cannot compute each sample's gradient in the "
                f"encoder ({reason(error)}); choose another network."
            ) from error
    trained = {name: p for name, p in alone.named_parameters() if p.requires_grad}
    found = [
        torch.autograd.grad(
            (alone(samples[n : n + 1]) * directions[n : n + 1]).sum(),
            list(trained.values()),
            allow_unused=True,
        )
        for n in range(_SAMPLES)
    ]
    for place, name in enumerate(trained):
        own = [one[place] for one in found]
        if own[0] is not None:
            yield name, _gap(getattr(probe.get_parameter(name), "grad_sample", None), own)


def _gap(hooked: Tensor | None, own: list[Tensor]) -> float:
    exact = torch.stack(own)
    if hooked is None or hooked.shape != exact.shape:
        return float("inf")
    away = (hooked - exact).flatten(1).norm(dim=1)
    return float((away / (exact.flatten(1).norm(dim=1) + _TOLERANCE)).max())


def _deterministic(encoder: nn.Module) -> nn.Module:
    """Return a copy in train mode and float64, with dropout and the like turned off."""
    found = copy.deepcopy(encoder).double().train()
    for part in found.modules():
        if any(word in type(part).__name__ for word in _RANDOM):
            part.eval()
    return found


def _draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
