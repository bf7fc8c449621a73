"""Trains two steps of one combination on fake tensors with the frameworks' own code."""

import itertools
import types
from collections import defaultdict

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode

import as_cuda
from tracker import Class, Tracker

DEVICE = torch.device("cpu")


def make_model(shape, combination):
    config = transformers.AutoConfig.for_model(**shape)
    dtype = torch.float32 if combination["states"].startswith("fp32") else torch.bfloat16
    attention = {"flash": "fused_shaped"}.get(combination["attention"], combination["attention"])
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)


def single_precision_outputs(model):
    """As Accelerator.prepare_model with mixed_precision bf16."""
    from accelerate.utils.operations import convert_outputs_to_fp32

    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    model.forward = types.MethodType(autocast(model.forward.__func__), model)
    model.forward = types.MethodType(convert_outputs_to_fp32(model.forward.__func__), model)


def fsdp_accelerator(combination):
    """What accelerate's FSDP plugin of version 2 holds by default, with TRANSFORMER_BASED_WRAP."""
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    mixed = combination["states"] != "pure"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, output_dtype=torch.bfloat16)
    plugin = types.SimpleNamespace(
        set_auto_wrap_policy=lambda model: None, auto_wrap_policy=transformer_auto_wrap_policy,
        transformer_cls_names_to_wrap=None, reshard_after_forward=True, cpu_offload=None, ignored_modules=None,
        cpu_ram_efficient_loading=False, mixed_precision_policy=policy if mixed else None, fsdp_version=2)
    return types.SimpleNamespace(
        state=types.SimpleNamespace(fsdp_plugin=plugin), mixed_precision="bf16" if mixed else "no",
        torch_device_mesh=None, is_main_process=False, device=DEVICE)


def start_ranks(world):
    """Ranks that do not exist, and their mesh, which cannot be made of fake tensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp._fully_shard import _fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
        mesh = init_device_mesh(DEVICE.type, (world,))
        _fully_shard._init_default_mesh = lambda: mesh


def watch_fsdp(tracker):
    """Tensors that FSDP's own functions allocate are its buffers; those that DTensor infers shapes with do not exist
    elsewhere. For the whole process."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

    def watched(function, flag="gathering"):
        def run(*args, **kwargs):
            setattr(tracker, flag, getattr(tracker, flag) + 1)
            try:
                return function(*args, **kwargs)
            finally:
                setattr(tracker, flag, getattr(tracker, flag) - 1)

        return run

    ShardingPropagator._propagate_tensor_meta_non_cached = watched(
        ShardingPropagator._propagate_tensor_meta_non_cached, "suspended")

    group = _fsdp_param_group.FSDPParamGroup
    for name in ["unshard", "wait_for_unshard", "post_backward"]:
        setattr(group, name, watched(getattr(group, name)))
    post_backward = group.post_backward

    def mark_shards(self, *unused):
        for p in self.fsdp_params:
            whole = getattr(p, "_unsharded_param", None)
            if whole is not None and whole.grad is not None:
                tracker.mark([whole.grad], Class.GATHERED)
        result = post_backward(self, *unused)
        waiting = [getattr(p, "_unsharded_param", None) for p in self.fsdp_params]
        tracker.mark([w.grad for w in waiting if w is not None and w.grad is not None], Class.GRADIENTS)
        tracker.mark([p.sharded_param.grad for p in self.fsdp_params if p.sharded_param.grad is not None],
                     Class.GRADIENTS)
        return result

    group.post_backward = mark_shards
    param = _fsdp_param.FSDPParam
    init = param.init_unsharded_param

    def init_unsharded_param(self):
        new = not hasattr(self, "_unsharded_param")
        init(self)
        if new and self._unsharded_param.requires_grad:
            self._unsharded_param.register_post_accumulate_grad_hook(
                lambda p: tracker.mark([p.grad], Class.GATHERED))

    param.init_unsharded_param = init_unsharded_param


class Adam8bit(torch.optim.Optimizer):
    """The states of 8-bit AdamW, which needs a GPU; its kernels allocate nothing that lasts.

    On one GPU bitsandbytes' (optim/optimizer.py, Optimizer2State.init_state): two moments of a byte with a float32
    for each block of 256; of float32 below 4096 elements and for embeddings (Trainer.create_optimizer). It knows no
    DTensors, so with FSDP torchao's (optim/adam.py, _new_buffer): likewise, of the parameter's type where the blocks
    do not divide the shard."""

    def __init__(self, model):
        super().__init__(list(model.parameters()), {})
        self.whole = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}

    @torch.no_grad()
    def step(self):
        for p in itertools.chain(*[group["params"] for group in self.param_groups]):
            if p.grad is None or p in self.state:
                continue
            local = p._local_tensor if hasattr(p, "_local_tensor") else p
            n = local.numel()
            if local is not p and (n < 4096 or n % 256):
                kind = local.dtype
            elif local is p and (n < 4096 or id(p) in self.whole):
                kind = torch.float32
            else:
                kind = torch.uint8
            self.state[p] = {k: torch.zeros_like(local, dtype=kind) for k in ("state1", "state2")}
            if kind == torch.uint8:
                blocks = -(-n // 256)
                for k in ("absmax1", "absmax2"):
                    self.state[p][k] = torch.zeros(blocks, dtype=torch.float32, device=DEVICE)


def make_optimizer(model, combination):
    if combination["states"] == "adam8":
        return Adam8bit(model)
    how = {"foreach": True} if combination["states"].endswith("foreach") else {"fused": True}
    return torch.optim.AdamW(model.parameters(), lr=1e-5, **how)


def loss_of(model, reference, combination, inputs):
    if combination["loss"] == "hf":
        stub = types.SimpleNamespace(
            accelerator=types.SimpleNamespace(parallelism_config=None, num_processes=combination["world"]),
            label_smoother=None, compute_loss_func=None, model_accepts_loss_kwargs=True, model=model,
            args=types.SimpleNamespace(average_tokens_across_devices=True, n_gpu=1), get_tp_size=lambda: 1)
        items = torch.ones((), dtype=torch.int64, device=DEVICE)
        return transformers.Trainer.compute_loss(stub, model, dict(inputs), num_items_in_batch=items)
    stub = types.SimpleNamespace(
        accelerator=types.SimpleNamespace(
            parallelism_config=None, num_processes=combination["world"], gather_for_metrics=lambda t: t,
            gather=lambda t: t, device=DEVICE),
        model=model, ref_model=reference, aux_loss_enabled=False, compute_loss_func=None, label_smoother=None,
        _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _tp_size=1, get_tp_size=lambda: 1,
        args=types.SimpleNamespace(loss_type="nll", average_tokens_across_devices=True,
                                   gradient_checkpointing_kwargs={"use_reentrant": False}))
    if combination["loss"] == "chunked":
        from trl import SFTTrainer

        items = torch.ones((), dtype=torch.int64, device=DEVICE)
        return SFTTrainer.compute_loss(stub, model, dict(inputs), num_items_in_batch=items)
    from trl import DPOTrainer

    for key, value in dict(ld_alpha=None, precompute_ref_logps=False, f_divergence_type="reverse_kl",
                           loss_types=["sigmoid"], loss_weights=[1.0], beta=0.1, label_smoothing=0.0,
                           use_weighting=False).items():
        setattr(stub, key, value)
    return DPOTrainer._compute_loss(stub, model, dict(inputs), False)


def make_inputs(shape, combination):
    rows = combination["batch"] * (2 if combination["loss"] == "dpo" else 1)
    tokens = torch.zeros((rows, combination["seq"]), dtype=torch.int64, device=DEVICE)
    inputs = {"input_ids": tokens}
    if combination["loss"] == "dpo":
        as_cuda.scored = 0.5  # a prompt of half the length
        inputs["completion_mask"] = torch.zeros_like(tokens)
    else:
        as_cuda.scored = 1.0
        inputs["labels"] = tokens.clone()
    if combination["loss"] != "hf":  # TRL's collators add it
        inputs["attention_mask"] = torch.ones_like(tokens)
    return inputs


def clip(model):
    """The Trainer's default, max_grad_norm 1."""
    from accelerate import Accelerator

    Accelerator._clip_grad_norm_dtensor_aware(None, list(model.parameters()), 1.0)


def tensors_at_peak(shape, combination):
    """The tensors of the fullest moment: class, operator, shape, type and bytes of each."""
    peaks = [p for s in train(shape, combination) for p in s["peaks"].values()]
    tracker = Tracker()
    tracker.list_at = max(peaks, key=lambda p: p["total"])["moment"]
    train(shape, combination, tracker)
    return tracker.listed


def with_fused_head(model, reference, combination):
    """As the trainers of TRL prepare models."""
    from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model

    if combination["loss"] == "dpo":
        disable_dropout_in_model(model)
        disable_dropout_in_model(reference)
        add_fused_lm_head(model, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))
        add_fused_lm_head(reference)
    else:
        add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))


def prepare(shape, combination, tracker):
    """The model, its reference for DPO, and the optimizer, as the trainers prepare them."""
    model = make_model(shape, combination)
    reference = None
    if combination["loss"] == "dpo":
        reference = make_model(shape, combination).requires_grad_(False).eval()
    if combination["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    if combination["loss"] != "hf":
        with_fused_head(model, reference, combination)
    if combination["world"] > 1:
        from accelerate.utils.fsdp_utils import fsdp2_prepare_model
        from trl.models import prepare_fsdp

        watch_fsdp(tracker)
        model = fsdp2_prepare_model(fsdp_accelerator(combination), model)
        if reference is not None:
            reference = prepare_fsdp(reference, fsdp_accelerator(combination))
    elif combination["states"] != "pure":
        single_precision_outputs(model)
        if reference is not None:
            single_precision_outputs(reference)
    for module in [model] + ([reference] if reference is not None else []):
        tracker.mark(list(module.parameters()), Class.PARAMETERS)
        tracker.mark(list(module.buffers()), Class.BUFFERS)
    if combination["world"] == 1:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: tracker.mark([p.grad], Class.GRADIENTS))
    return model, reference, make_optimizer(model, combination)


def train(shape, combination, tracker=None):
    """Peaks by phase of the first and second step, and bytes that wait between forward and backward."""
    tracker = tracker or Tracker()
    if combination["world"] > 1:
        start_ranks(combination["world"])
    with FakeTensorMode(allow_non_fake_inputs=True), as_cuda.known_sizes():
        model, reference, optimizer = prepare(shape, combination, tracker)
        inputs = make_inputs(shape, combination)
        tracker.mark(list(inputs.values()), Class.INPUTS)
        steps = []
        with tracker:
            for _ in range(2):
                microbatches = combination.get("microbatches", 1)
                for left in reversed(range(microbatches)):
                    # As accelerate's no_sync, in which the Trainer runs all microbatches but the last.
                    if combination["world"] > 1:
                        model.set_requires_gradient_sync(left == 0)
                    tracker.enter("forward")
                    loss = loss_of(model, reference, combination, inputs)
                    waiting = tracker.current()
                    tracker.enter("backward")
                    loss.backward()
                    loss = loss.detach()
                tracker.enter("update")
                clip(model)
                optimizer.step()
                for states in optimizer.state.values():
                    tracker.mark([v for v in states.values() if torch.is_tensor(v)], Class.OPTIMIZER)
                model.zero_grad()
                steps.append({"peaks": tracker.taken_peaks(), "waiting": waiting})
    return steps
