"""ArcticTraining: train.yaml, and the command of launch.sh with the parser of DeepSpeed's launcher.

Its pydantic classes forbid unknown keys, but in the block deepspeed, which is held to DeepSpeed's
classes as completed by ArcticTraining. Faked: distributed initialization, and that flash_attn is
installed.
"""

import importlib.machinery
import sys
import types

import arctic_training_cli
import deepspeed
from deepspeed.launcher.runner import parse_args

deepspeed.init_distributed = lambda *_, **__: None
flash_attn = types.ModuleType("flash_attn")
flash_attn.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
sys.modules["flash_attn"] = flash_attn

# pylint: disable=wrong-import-position
import arctic_training  # noqa: E402, F401  # pylint: disable=unused-import
from arctic_training.config.trainer import get_config  # noqa: E402
from deepspeed_json import deepspeed_problems  # noqa: E402
from files import Refused, command, offer_model, processes_here, read_yaml  # noqa: E402


def world_of(words):
    """The number of processes that a command starts."""
    if words[0] != "arctic_training":
        raise Refused(f"launch.sh: {words[0]} is not arctic_training")
    launched = []
    arctic_training_cli.deepspeed_launch = lambda **given: launched.append(given["deepspeed_args"])
    sys.argv = list(words)
    arctic_training_cli.main()
    args = parse_args([*launched[0], "train.yaml"])
    return max(args.num_nodes, 1) * (args.num_gpus if args.num_gpus > 0 else 8)


def problems(folder):
    """What is wrong with a folder."""
    world = world_of(command(folder))
    processes_here(world)
    settings = read_yaml(folder / "train.yaml")
    offer_model(settings.get("model", {}).get("name_or_path"))
    config = get_config(folder / "train.yaml")
    return deepspeed_problems(config.deepspeed, "train.yaml: deepspeed", world)
