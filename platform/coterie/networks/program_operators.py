"""The operators that a program from a file may call: those of networks' forward passes.

ATen has operators that trust their arguments, so that a graph could read or write any memory of the
process: those of backward passes (`max_pool2d_with_indices_backward`), those named `unsafe`, and
others that only PyTorch's own code is meant to call. So what is not listed here is refused. Listed
are operators that networks of torchvision, timm and Coterie have when they are exported, and
relatives of them; each checks its arguments itself. None gives memory that was never written.
Of `upsample_*` only `vec` passes, which takes a size or scales: with both, PyTorch follows the
scales beyond the samples. A rounding to `trunc` is refused in `program_file`.
"""

import torch

_ARITHMETIC = """
    abs add addcdiv addcmul atan atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp
    clamp_max clamp_min clip cos cosh diff div eq erf exp exp2 expm1 floor floor_divide fmod
    frac ge gt isfinite isinf isnan le lerp log log10 log1p log2 logical_and logical_not
    logical_or logical_xor lt masked_fill maximum minimum mul nan_to_num ne neg negative pow
    promote_types reciprocal remainder round rsqrt rsub sgn sign sin sinh sqrt square sub tan
    tanh true_divide trunc where
"""
_ACTIVATIONS = """
    _log_softmax _softmax celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu
    log_sigmoid log_softmax logit mish prelu relu relu6 selu sigmoid silu softmax softplus
    softshrink threshold
"""
_LAYERS = """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d alpha_dropout avg_pool1d avg_pool2d avg_pool3d
    batch_norm col2im conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    dropout embedding feature_dropout group_norm im2col instance_norm layer_norm linear
    max_pool1d max_pool2d max_pool3d rms_norm scaled_dot_product_attention
    upsample_bicubic2d.vec upsample_bilinear2d.vec upsample_linear1d.vec upsample_nearest1d.vec
    upsample_nearest2d.vec upsample_nearest3d.vec upsample_trilinear3d.vec
"""
_PRODUCTS = """
    addmm baddbmm bmm cdist cosine_similarity dot einsum linalg_vector_norm matmul mm mv norm
    outer
"""
_REDUCTIONS = """
    all amax amin any argmax argmin argsort cumprod cumsum logsumexp max mean min prod sort std
    std_mean sum topk var var_mean
"""
_SHAPES = """
    _to_copy alias cat channel_shuffle chunk clone concat contiguous detach detach_ diagonal
    expand expand_as flatten flip gather index index_select lift_fresh_copy meshgrid movedim
    narrow numpy_T one_hot pad permute pixel_shuffle pixel_unshuffle repeat
    repeat_interleave.self_int reshape reshape_as roll rot90 select slice split split_with_sizes
    squeeze stack swapaxes sym_size t tile to transpose tril tril_indices triu triu_indices
    type_as unbind unflatten unfold unsqueeze view view_as
"""
_NEW = """
    arange eye full full_like linspace new_full new_ones new_zeros ones ones_like scalar_tensor
    zeros zeros_like
"""
_IN_PLACE = """
    add_ clamp_ clamp_max_ clamp_min_ copy_ div_ dropout_ elu_ exp_ feature_dropout_ fill_
    hardsigmoid_ hardswish_ hardtanh_ leaky_relu_ masked_fill_ mish_ mul_ neg_ pow_ relu6_ relu_
    sigmoid_ silu_ sqrt_ sub_ tanh_ zero_
"""
_GROUPS = (
    *(_ARITHMETIC, _ACTIVATIONS, _LAYERS, _PRODUCTS, _REDUCTIONS, _SHAPES, _NEW, _IN_PLACE),
    "_assert_scalar",
)
_OF_NUMBERS = frozenset({"_assert_scalar", "promote_types", "sym_size"})
OPERATORS = frozenset(name for group in _GROUPS for name in group.split())
"""Names in `torch.ops.aten`, with the overload where only one is meant."""


def is_allowed(name: str, overload: str) -> bool:
    """Return whether a program may call `torch.ops.aten.<name>.<overload>`."""
    listed = not {name, f"{name}.{overload}"}.isdisjoint(OPERATORS)
    return listed and not overload.endswith("out") and _gives_tensors(name, overload)


def _gives_tensors(name: str, overload: str) -> bool:
    """Return whether an operator returns tensors: on numbers, some divide by 0 without a check."""
    found = getattr(getattr(torch.ops.aten, name, None), overload, None)
    return name in _OF_NUMBERS or (
        found is not None and any("Tensor" in str(each.type) for each in found._schema.returns)
    )
