"""LLaMA-Factory: train.yaml and ds_config.json, with get_train_args, which refuses unknown keys.

Faked: that GPUs can do bfloat16, and that there are several processes.
"""

import os

import transformers.training_args
from deepspeed_json import deepspeed_problems
from files import offer_model, read_json, read_yaml

os.environ["DISABLE_VERSION_CHECK"] = "1"
transformers.training_args.is_torch_bf16_gpu_available = lambda: True

# pylint: disable=wrong-import-position
from llamafactory.hparams import get_train_args  # noqa: E402
from transformers.training_args import ParallelMode, TrainingArguments  # noqa: E402

TrainingArguments.parallel_mode = property(lambda _: ParallelMode.DISTRIBUTED)


def problems(folder):
    """What is wrong with a folder."""
    settings = read_yaml(folder / "train.yaml")
    offer_model(settings.get("model_name_or_path"))
    get_train_args(settings)
    wrong = []
    if (folder / "ds_config.json").exists():
        wrong += deepspeed_problems(read_json(folder / "ds_config.json"), "ds_config.json")
    return wrong
