"""Makes fake tensors on the CPU run the operators that a GPU would.

PyTorch's autograd engine refuses fake CUDA tensors without a GPU. On the CPU four things differ: the operators that
autocast runs in single precision, the kernels that attention and dropout choose, and Triton's kernels.
"""

import torch
import torch.nn.functional as F
from torch import library

aten = torch.ops.aten
_LOW = (torch.bfloat16, torch.float16)
_kept = []  # libraries unregister when they are collected


def _without_autocast():
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _in_single(op):
    """CUDA's policy fp32 (ATen/autocast_mode.h): all floating arguments are cast."""

    def run(*args, **kwargs):
        cast = lambda a: a.float() if torch.is_tensor(a) and a.dtype in _LOW else a
        with _without_autocast():
            return op(*[cast(a) for a in args], **{k: cast(v) for k, v in kwargs.items()})

    return run


def _to_single(op, place):
    """CUDA's policy fp32_set_opt_dtype: the result's type is set."""

    def run(*args, **kwargs):
        args = list(args)
        said = args[place] if len(args) > place else kwargs.get("dtype")
        if said is None and args[0].dtype in _LOW:
            if len(args) > place:
                args[place] = torch.float32
            else:
                kwargs["dtype"] = torch.float32
        with _without_autocast():
            return op(*args, **kwargs)

    return run


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """What scaled_dot_product_attention runs on a GPU without a mask: FlashAttention, shared keys included."""
    if attn_mask is not None:
        raise NotImplementedError("attention with a mask")
    if torch.is_autocast_enabled("cpu"):
        low = torch.get_autocast_dtype("cpu")
        query, key, value = (t.to(low) for t in (query, key, value))
    if query.dtype not in _LOW:
        raise NotImplementedError("FlashAttention in single precision")
    if not enable_gqa and key.shape[1] != query.shape[1]:
        raise ValueError("unequal heads")
    return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]


def _dropout(input, p=0.5, training=True, inplace=False):
    """On a GPU one kernel, which keeps a mask of a byte for each element."""
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input


def flash_shaped(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    """As transformers' flash_attention_forward: casts to autocast's type, and keeps q, k, v, output and row sums."""
    low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.bfloat16
    query, key, value = (t.to(low) for t in (query, key, value))
    out = aten._scaled_dot_product_flash_attention(query, key, value, dropout, True, False, scale=scaling)[0]
    return out.transpose(1, 2), None


class _NoKernel:
    """Stands for a Triton kernel, which writes in place and allocates nothing."""

    def __getitem__(self, grid):
        return lambda *args, **kwargs: None


# The share of the positions that a mask of a batch selects, since a fake mask has no values.
scored = 1.0


class known_sizes:
    """Lets code that reads values of fake tensors run: a mask selects `scored` of the positions, numbers are 1, and
    conditions true."""

    def __enter__(self):
        self.old = {name: getattr(torch.Tensor, name) for name in ["__getitem__", "item", "__bool__", "tolist"]}
        getitem = self.old["__getitem__"]

        def take(tensor, index):
            if torch.is_tensor(index) and index.dtype == torch.bool:
                chosen = round(index.numel() * scored)
                places = [torch.zeros(chosen, dtype=torch.int64, device=tensor.device) for _ in index.shape]
                return aten.index.Tensor(tensor, places)
            return getitem(tensor, index)

        torch.Tensor.__getitem__ = take
        torch.Tensor.item = lambda tensor: 1.0 if tensor.is_floating_point() else 1
        torch.Tensor.__bool__ = lambda tensor: True
        torch.Tensor.tolist = lambda tensor: [1.0] * tensor.numel()
        return self

    def __exit__(self, *_):
        for name, function in self.old.items():
            setattr(torch.Tensor, name, function)


def install():
    lib = library.Library("aten", "IMPL")
    _kept.append(lib)
    for name in ["pow.Tensor_Scalar", "pow.Tensor_Tensor", "rsqrt", "layer_norm", "exp", "log", "reciprocal"]:
        op, _, overload = name.partition(".")
        lib.impl(name, _in_single(getattr(getattr(aten, op), overload or "default")), "AutocastCPU")
    places = {"softmax.int": 2, "log_softmax.int": 2, "cumsum": 2, "sum": 1, "sum.dim_IntList": 3}
    for name, place in places.items():
        op, _, overload = name.partition(".")
        lib.impl(name, _to_single(getattr(getattr(aten, op), overload or "default"), place), "AutocastCPU")
    F.scaled_dot_product_attention = _attention
    F.dropout = _dropout

    import transformers
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask

    transformers.AttentionInterface.register("fused_shaped", flash_shaped)
    ALL_MASK_ATTENTION_FUNCTIONS.register("fused_shaped", flash_attention_mask)

    # Batches are not packed and not padded, which cannot be read from fake tensors.
    import transformers.masking_utils as masks

    masks.find_packed_sequence_indices = lambda position_ids: None
    masks.is_tracing = lambda *tensors: False

    import trl.kernels.chunked_logprob as chunked

    chunked._forward_kernel = chunked._backward_kernel = _NoKernel()
    chunked._use_triton = lambda device: True
    chunked._addmm_fp32 = lambda acc, a, b: None  # a product with out_dtype, into acc
    import trl.trainer.utils as utils

    utils._use_triton = lambda device: True
