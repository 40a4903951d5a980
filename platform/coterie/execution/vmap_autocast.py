"""Autocast within `vmap`, where PyTorch's own does not see the operations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_PRODUCTS = frozenset(
    {
        functional.linear,
        *(functional.conv1d, functional.conv2d, functional.conv3d),
        *(functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d),
        *(torch.matmul, torch.mm, torch.bmm, torch.mv, torch.addmm, torch.baddbmm),
        *(Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.mm, Tensor.bmm),
        functional.scaled_dot_product_attention,
    }
)
"""Convolutions and matrix products, which autocast computes in its narrow type on every device."""
_NARROW = (torch.bfloat16, torch.float16)
_NORMS = frozenset({functional.batch_norm, functional.instance_norm, functional.group_norm})
"""Under `vmap` these do not take float32 weights with narrow inputs, as they do alone."""


class VmapAutocast(TorchFunctionMode):
    """Mode that gives convolutions and matrix products narrow operands if autocast is enabled.

    PyTorch applies autocast below `vmap`'s own dispatch, which `vmap` skips. This works above it,
    on the calls of `torch` themselves, so losses that disable autocast stay in float32. What
    autocast widens, such as a softmax on a GPU, takes the type that it is given; products within a
    function of `torch.nn.functional` itself, such as multi-head attention, stay in float32.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`: products with narrow operands, norms of narrow inputs in float32."""
        given = dict(kwargs or {})
        if func in _PRODUCTS:
            args = [_narrow(value) for value in args]
            given = {name: _narrow(value) for name, value in given.items()}
        if func in _NORMS and _enabled(args[0]) and args[0].dtype in _NARROW:
            return func(args[0].float(), *args[1:], **given).to(args[0].dtype)
        return func(*args, **given)


def _narrow(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or not _enabled(value):
        return value
    return value.to(torch.get_autocast_dtype(value.device.type))


def _enabled(tensor: Tensor) -> bool:
    return torch.is_autocast_enabled(tensor.device.type)
