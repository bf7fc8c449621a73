"""DeepSpeed: ds_config.json, and the command of launch.sh, with the launcher's own parser."""

from deepspeed.launcher.runner import parse_args
from deepspeed_json import deepspeed_problems
from files import Refused, command, read_json, torchrun


def world_of(words):
    """The number of processes that a command starts."""
    if words[0] != "deepspeed":
        return torchrun(words)[0]
    args = parse_args(words[1:])
    if args.num_gpus < 1:
        raise Refused("launch.sh: --num_gpus is missing")
    return max(args.num_nodes, 1) * args.num_gpus


def problems(folder):
    """What is wrong with a folder."""
    world = world_of(command(folder))
    return deepspeed_problems(read_json(folder / "ds_config.json"), "ds_config.json", world)
