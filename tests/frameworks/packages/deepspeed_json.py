"""DeepSpeed's JSON, also where another framework reads it.

DeepSpeed forbids unknown keys in most blocks, and lets them pass at the top and in a few others,
such as activation_checkpointing and aio. There a key is unknown if DeepSpeed did not ask for it.
World size and rank are faked: there is one process.
"""

import deepspeed.comm
from deepspeed.runtime.config import DeepSpeedConfig
from files import Refused

# Keys whose value may be "auto": Hugging Face's Trainer fills them in.
AUTO = [
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "bf16.enabled",
    "fp16.enabled",
    "optimizer.params.",
    "scheduler.params.",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.stage3_max_live_parameters",
    "zero_optimization.stage3_max_reuse_distance",
]


class Asked(dict):
    """A dict that knows which keys have been asked for."""

    def __init__(self, settings=()):
        super().__init__(settings)
        self.asked = set()

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)

    def keys(self):
        return self

    def __iter__(self):  # without it, ** would read the keys unseen
        return super().__iter__()


def without_auto(settings, at=""):
    """Settings that can be asked for, less those that are filled in later."""
    kept = Asked()
    for key, value in settings.items():
        if isinstance(value, dict):
            kept[key] = without_auto(value, f"{at}{key}.")
        elif value != "auto":
            kept[key] = value
        elif f"{at}{key}" not in AUTO and f"{at}params." not in AUTO and at not in AUTO:
            raise Refused(f"{at}{key}: no one fills in auto")
    return kept


def never_asked(settings, at=""):
    """Keys that no one asked for, of the dicts of which one was asked for any.

    The parameters of optimizer and scheduler are read later, by these.
    """
    if settings.asked and not at.endswith(".params."):
        yield from (f"{at}{key}" for key in settings if key not in settings.asked)
    for key, value in settings.items():
        if isinstance(value, Asked):
            yield from never_asked(value, f"{at}{key}.")


def deepspeed_problems(settings, where, world=None):
    """What is wrong with DeepSpeed's settings; without a world, it is what the batch needs."""
    settings = without_auto(settings)
    micro = settings.setdefault("train_micro_batch_size_per_gpu", 1)
    if world is None:
        share = micro * settings.setdefault("gradient_accumulation_steps", 1)
        ulysses = dict.get(settings, "sequence_parallel_size", 1)
        world = max(1, ulysses * dict.get(settings, "train_batch_size", share) // share)
    deepspeed.comm.get_rank = lambda *_: 0
    deepspeed.comm.get_world_size = lambda *_, **__: world
    wrong = []
    try:
        DeepSpeedConfig(settings)
    except AssertionError as error:  # of batches; only after all keys have been read
        wrong = [f"{where}: {error}"]
    return [f"{where}: {key} is not known" for key in never_asked(settings)] + wrong
