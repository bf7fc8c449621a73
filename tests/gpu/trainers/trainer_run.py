"""One run of `measure`, in a process of its own: trains, and prints what it took."""

import gc
import importlib.metadata
import json
import os
import sys
import tempfile
import time
import traceback

import torch
import transformers

SHRUNK = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512}
PACKAGES = ["torch", "transformers", "accelerate", "trl", "liger-kernel", "deepspeed"]


def main(run, shrink):
    if shrink:
        run = dict(run, seq=64)
        run["shape"] = dict(run["shape"], **SHRUNK)
    import_ahead(run, shrink)
    print("ready", flush=True)
    if sys.stdin.readline().strip() != "go":
        return 1
    said = {"packages": versions()}
    meter = Meter(not shrink)
    try:
        train(run, meter, shrink)
        said["outcome"] = "trained"
    except torch.OutOfMemoryError as error:
        said.update(outcome="out of memory", error=str(error)[:400])
    except Exception:  # of the packages: the parent shows it
        said.update(outcome="failed", error=traceback.format_exc()[-3000:])
    said.update(meter.said())
    print("result " + json.dumps(said), flush=True)
    os._exit(0)  # packages' own ends take seconds


def versions():
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def import_ahead(run, shrink):
    """Everything that takes time and does not touch the GPU."""
    import accelerate  # noqa: F401

    if run["trainer"] in ("sft", "dpo"):
        import trl  # noqa: F401
        import datasets  # noqa: F401
    if run.get("deepspeed"):
        import deepspeed  # noqa: F401

        zero = run["deepspeed"].get("zero_optimization", {})
        if zero.get("offload_optimizer", {}).get("device") == "cpu" and not shrink:
            from deepspeed.ops.op_builder import CPUAdamBuilder

            CPUAdamBuilder().load(verbose=False)


class Meter:
    """Device memory by phase and by step, in bytes; seconds by step."""

    def __init__(self, on_gpu):
        self.on_gpu = on_gpu
        self.phases, self.steps = {}, []
        self.card_used = self.context = 0
        self.started = None
        if on_gpu:
            torch.cuda.init()
            torch.zeros(1, device="cuda")
            free, total = torch.cuda.mem_get_info()
            self.context = total - free - torch.cuda.memory_reserved()

    def wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def peaks(self):
        if not self.on_gpu:
            return {"allocated": 0, "reserved": 0}
        return {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}

    def phase(self, name):
        """Ends a phase: its peak, and what stays."""
        self.wait()
        stays = torch.cuda.memory_allocated() if self.on_gpu else 0
        self.phases[name] = dict(self.peaks(), stays=stays)
        self.reset()

    def reset(self):
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()

    def begin_step(self):
        self.wait()
        self.started = time.monotonic()

    def end_step(self):
        self.wait()
        self.steps.append(dict(self.peaks(), seconds=time.monotonic() - self.started))
        self.look_at_card()
        self.reset()

    def look_at_card(self):
        if self.on_gpu:
            free, total = torch.cuda.mem_get_info()
            self.card_used = max(self.card_used, total - free)

    def said(self):
        self.look_at_card()
        now = self.peaks()
        return {"context": self.context, "phases": self.phases, "steps": self.steps, "last": now,
                "card_used": self.card_used,
                "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0) if self.on_gpu else 0}


class StepMeter(transformers.TrainerCallback):
    def __init__(self, meter):
        self.meter = meter

    def on_step_begin(self, args, state, control, **kwargs):
        self.meter.begin_step()

    def on_step_end(self, args, state, control, **kwargs):
        self.meter.end_step()


def train(run, meter, shrink):
    arguments = training_arguments(run, shrink)  # before the model: ZeRO-3 builds it sharded
    model = make_model(run, shrink)
    meter.phase("model")
    trainer = make_trainer(run, model, arguments, shrink)
    trainer.add_callback(StepMeter(meter))
    del model
    gc.collect()
    meter.phase("trainer")
    trainer.train()
    states = 0
    for state in getattr(trainer.optimizer, "state", {}).values():
        states += sum(v.numel() * v.element_size() for v in state.values() if torch.is_tensor(v))
    meter.phases["optimizer"] = {"stays": states}
    meter.phases["parameters"] = {"stays": sum(
        p.numel() * p.element_size() for p in trainer.model.parameters()),
        "count": sum(p.numel() for p in trainer.model.parameters())}


def make_model(run, shrink):
    shape = dict(run["shape"])
    kind = shape.pop("model_type")
    config = transformers.AutoConfig.for_model(kind, **shape)
    dtype = getattr(torch, run["dtype"])
    on = "cpu" if shrink or run.get("deepspeed") else "cuda"
    torch.set_default_device(on)
    try:
        return transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=run["attention"])
    finally:
        torch.set_default_device(None)


def training_arguments(run, shrink):
    words = {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": run["steps"],
        "per_device_train_batch_size": run["batch"],
        "gradient_accumulation_steps": run["accumulation"],
        "gradient_checkpointing": run["checkpointing"],
        "bf16": run["bf16"] and not shrink,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "remove_unused_columns": run["trainer"] != "trainer",
        "use_cpu": shrink,
        **run.get("arguments", {}),
    }
    if run.get("deepspeed") and not shrink:
        words["deepspeed"] = run["deepspeed"]
    if run["trainer"] == "sft":
        import trl

        return trl.SFTConfig(max_length=run["seq"], dataset_kwargs={"skip_prepare_dataset": False}, **words)
    if run["trainer"] == "dpo":
        import trl

        return trl.DPOConfig(max_length=run["seq"], **words)
    return transformers.TrainingArguments(**words)


class Tokens(torch.utils.data.Dataset):
    def __init__(self, length, vocabulary):
        generator = torch.Generator().manual_seed(1)
        self.rows = torch.randint(0, vocabulary, (64, length), generator=generator)

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def make_trainer(run, model, arguments, shrink):
    vocabulary, length = run["shape"]["vocab_size"], run["seq"]
    if run["trainer"] == "trainer":
        return transformers.Trainer(model=model, args=arguments, train_dataset=Tokens(length, vocabulary))
    import datasets
    import trl

    rows = Tokens(length, vocabulary).rows.tolist()
    tokenizer = tokenizer_of(vocabulary)
    if run["trainer"] == "sft":
        data = datasets.Dataset.from_dict({"input_ids": rows})
        return trl.SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer)
    half = length // 2
    words = [" ".join("t%d" % t for t in row) for row in rows[:8]]
    cut = lambda text, begin, end: " ".join(text.split(" ")[begin:end])
    data = datasets.Dataset.from_dict({
        "prompt": [cut(text, 0, half) + " " for text in words],
        "chosen": [cut(text, half, length - 1) for text in words],
        "rejected": [cut(text, half, length - 1) for text in words]})
    reference = None
    if not arguments.precompute_ref_log_probs:
        reference = make_model(run, shrink)
    return trl.DPOTrainer(model=model, ref_model=reference, args=arguments, train_dataset=data,
                          processing_class=tokenizer)


def tokenizer_of(vocabulary):
    import tokenizers

    table = {"t%d" % i: i for i in range(vocabulary - 2)}
    table["<pad>"], table["<eos>"] = vocabulary - 2, vocabulary - 1
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, unk_token="t0"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
