"""TRL and accelerate: train.yaml, accelerate.yaml, ds_config.json and the command of launch.sh.

accelerate forbids unknown keys at the top of its file and drops those of its blocks in silence;
here they must be flags of `accelerate launch`. TRL's scripts drop unknown keys, its parser refuses
them. Faked: that GPUs can do bfloat16.
"""

import os

import transformers.training_args
from accelerate import ParallelismConfig
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from deepspeed_json import deepspeed_problems
from files import Refused, command, offer_model, read_json, read_yaml
from trl import DPOConfig, ModelConfig, RewardConfig, ScriptArguments, SFTConfig, TrlParser

transformers.training_args.is_torch_bf16_gpu_available = lambda: True

TASKS = {"sft": SFTConfig, "dpo": DPOConfig, "reward": RewardConfig}


def task_of(words):
    """What is trained, of the command's program: trl sft, trl.scripts.sft, sft.py."""
    for word in words:
        task = word.removeprefix("trl.scripts.").removesuffix(".py").rpartition("/")[2]
        if task in TASKS:
            return task
    raise Refused("launch.sh: no program of TRL")


def accelerate_problems(folder):
    """What is wrong with accelerate.yaml, and the number of processes that it starts."""
    path = folder / "accelerate.yaml"
    read_yaml(path)
    config = load_config_from_file(str(path))
    args = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    wrong = []
    for block, prefix in (("fsdp", "fsdp_"), ("deepspeed", ""), ("parallelism", "")):
        name = f"{block}_config"
        for key in getattr(config, name, None) or {}:
            if not hasattr(args, key if key.startswith(prefix) else prefix + key):
                wrong.append(f"accelerate.yaml: {name}.{key} is not known")
    args, defaults, _ = _validate_launch_command(args)
    blocks = sorted(defaults.deepspeed_config or {})
    args.deepspeed_fields_from_accelerate_config = ",".join(blocks)
    prepare = prepare_deepspeed_cmd_env if args.use_deepspeed else prepare_multi_gpu_env
    prepared = prepare(args)
    os.environ.update(prepared[1] if isinstance(prepared, tuple) else prepared)
    degrees = ParallelismConfig()  # of the environment, as the plugins
    if degrees.total_size not in (1, config.num_processes) and degrees.sp_size == 1:
        sizes = f"{degrees.total_size} instead of {config.num_processes}"
        wrong.append(f"accelerate.yaml: parallelism_config is of {sizes} processes")
    if args.use_fsdp:
        FullyShardedDataParallelPlugin()
    if args.use_deepspeed:
        DeepSpeedPlugin()
    return wrong, config.num_processes


def problems(folder):
    """What is wrong with a folder."""
    words = command(folder)
    if words[:2] == ["accelerate", "launch"]:
        launch_command_parser().parse_args(words[2:])
    settings = read_yaml(folder / "train.yaml")
    offer_model(settings.get("model_name_or_path"))
    parser = TrlParser((ScriptArguments, TASKS[task_of(words)], ModelConfig))
    parser.parse_args_and_config(["--config", str(folder / "train.yaml")])
    wrong, world = accelerate_problems(folder)
    if (folder / "ds_config.json").exists():
        wrong += deepspeed_problems(read_json(folder / "ds_config.json"), "ds_config.json", world)
    return wrong
