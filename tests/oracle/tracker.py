"""Peaks of the tensors that one training step holds, by class, on PyTorch's fake tensors.

PyTorch's MemTracker sees the result of each operator. This tracker adds three things: classes of FSDP's buffers,
the memory that CUDA kernels take inside an operator, and the sums of autograd, which a GPU makes in place.
"""

from copy import deepcopy

import torch
from torch.distributed._tools.mem_tracker import MemTracker, _RefType
from torch.distributed.tensor import DTensor
from torch._guards import active_fake_mode
from torch.distributed._tools.common_utils import get_untyped_storages
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

aten = torch.ops.aten


class Class(_RefType):
    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    GATHERED = "gathered"  # FSDP's: gathered parameters, whole gradients, buffers of both
    SAVED = "saved"  # what the forward made and something still holds
    WORK = "work"  # what the backward made: recomputed layers, gradients of activations
    BUFFERS = "buffers"
    INPUTS = "inputs"
    LIBRARIES = "libraries"  # workspaces of cuBLAS


# A Hopper GPU's, of each thread from its first product: the forward's, and autograd's
# (ATen/cuda/CublasHandlePool.cpp).
WORKSPACE = 32 << 20
PRODUCTS = {aten.mm.default, aten.mm.out, aten.addmm.default, aten.bmm.default}


def _rounded(n, unit):
    return -(-n // unit) * unit


def _flash_backward(args, results):
    """ATen's flash_attn/flash_api.cpp, mha_bwd: the sum of dq in single precision, a number for each row of it,
    and dk and dv of every query head where heads share keys."""
    q, k = args[1], args[2]
    batch, heads, length, width = q.shape
    rows = _rounded(length, 128)
    hidden = batch * heads * rows * (_rounded(width, 32 if width <= 128 else 64) + 1) * 4
    if k.shape[1] != heads:
        hidden += 2 * batch * heads * k.shape[2] * width * k.element_size()
    return hidden


def _softmax_backward(args, results):
    """ATen's cuda/SoftMax.cu, softmax_backward_cuda_out: the product of the gradient and the output."""
    return args[0].numel() * args[0].element_size()


HIDDEN = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._softmax_backward_data.default: _softmax_backward,
}


class Tracker(MemTracker):
    def __init__(self):
        super().__init__()
        self._ref_class = Class
        self.phase = "setup"
        self.gathering = 0
        self.suspended = 0
        self.multiplying = set()  # phases that have
        self.moment = 0  # operators so far
        self.list_at = None  # the moment whose tensors `listed` gets
        self.listed = []
        self.made_by = WeakIdKeyDictionary()  # of storages: operator, shape and type
        self.peaks = {}  # of each phase: bytes by class

    def mark(self, tensors, kind):
        for tensor in tensors:
            self._update_and_maybe_create_winfos(tensor, kind)

    @staticmethod
    def _named(snap):
        return {str(getattr(kind, "value", kind)).lower(): size for kind, size in snap.items() if size}

    def current(self):
        """Bytes by class now."""
        return self._named(next(iter(self._curr_mem_snap.values()), {}))

    def enter(self, phase):
        self.phase = phase

    def _kind(self):
        if self.gathering:
            return Class.GATHERED
        kinds = {"forward": Class.SAVED, "backward": Class.WORK, "update": Class.OPTIMIZER}
        return kinds.get(self.phase, Class.INPUTS)

    def _note(self, hidden=0):
        for snap in self._curr_mem_snap.values():
            workspaces = len(self.multiplying) * WORKSPACE
            total = snap["Total"] + hidden + workspaces
            if total > self.peaks.get(self.phase, {"Total": -1})["Total"]:
                peak = deepcopy(snap)
                peak["Total"] = total
                peak[Class.WORK] += hidden
                peak[Class.LIBRARIES] = workspaces
                peak["moment"] = self.moment
                self.peaks[self.phase] = peak

    def _in_place_on_gpu(self, func, args):
        """Autograd adds to the first gradient in place, except to a view, which keeps its base, and to a tensor
        subclass, as fake tensors are (autograd/input_buffer.cpp). It runs without gradients, recomputed layers with
        them."""
        return (func is aten.add.Tensor and self.phase == "backward" and not torch.is_grad_enabled()
                and not args[0]._is_view())

    def _remember(self, func, tensor):
        for storage in get_untyped_storages(tensor):
            if storage not in self._WINFO:
                self.made_by[storage] = (str(func), tuple(tensor.shape), str(tensor.dtype)[len("torch."):])

    def _list(self, hidden):
        for storage, (info, _) in self._WINFO.items():
            if info.mem_consumed > 0:
                made = self.made_by.get(storage, ("before", (), ""))
                self.listed.append((info.reftype.value, *made, info.mem_consumed))
        if hidden:
            self.listed.append((Class.WORK.value, "inside the operator", (), "", hidden))

    def taken_peaks(self):
        """The peak of each phase since the last call."""
        peaks = {phase: self._named(peak) for phase, peak in self.peaks.items()}
        self.peaks = {}
        return peaks

    def __enter__(self):
        if self._depth == 0:
            self._track_resize()
        torch.utils._python_dispatch.TorchDispatchMode.__enter__(self)
        self._depth += 1
        return self

    def __exit__(self, *args):
        self._depth -= 1
        if self._depth == 0:
            self._restore_resize()
        torch.utils._python_dispatch.TorchDispatchMode.__exit__(self, *args)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t == DTensor for t in types):
            return NotImplemented
        if func is torch.ops._c10d_functional.wait_tensor.default and active_fake_mode():
            result = args[0]
        else:
            result = func(*args, **kwargs or {})
        if not self.suspended:
            kind = self._kind()
            if self.list_at is not None:
                tree_map_only(torch.Tensor, lambda t: self._remember(func, t), result)
            tree_map_only(torch.Tensor, lambda t: self._track(kind, t), result)
            self.moment += 1
            if func in PRODUCTS:
                self.multiplying.add(self.phase)
            if not self._in_place_on_gpu(func, args):
                hidden = HIDDEN[func](args, result) if func in HIDDEN else 0
                self._note(hidden)
                if self.moment == self.list_at:
                    self._list(hidden)
        return result
