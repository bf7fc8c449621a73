"""torchtitan: the flags of launch.sh and the TOML that they name, with its ConfigManager.

It refuses unknown flags, and unknown keys of the TOML, but not values of a wrong type there; those
are held to the classes here. Its models must have the model's name and size.
"""

import dataclasses
import typing

from files import Refused, command, processes_here, torchrun, value_of
from torchtitan.config import ConfigManager


def wrong_values(config, at=""):
    """Values of the TOML that are not of the type of their field."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from wrong_values(value, f"{at}{field.name}.")
            continue
        words = typing.get_args(field.type) if typing.get_origin(field.type) is typing.Literal else ()
        kinds = {bool: bool, int: int, float: (int, float), str: str}
        right = value in words if words else isinstance(value, kinds.get(field.type, object))
        if not right or (field.type in (int, float) and isinstance(value, bool)):
            yield f"{at}{field.name}: {value!r} is not {field.type}"


def problems(folder):
    """What is wrong with a folder."""
    world, program, flags = torchrun(command(folder))
    if program not in ("torchtitan.train", "train.py"):
        raise Refused(f"launch.sh: {program} is not torchtitan.train")
    if not value_of(flags, "--job.config_file"):
        raise Refused("launch.sh: no --job.config_file")
    processes_here(world)
    config = ConfigManager().parse_args(flags)
    degrees = config.parallelism
    wrong = list(wrong_values(config))
    group = (
        degrees.data_parallel_replicate_degree
        * degrees.tensor_parallel_degree
        * degrees.context_parallel_degree
        * degrees.pipeline_parallel_degree
    )
    shard = degrees.data_parallel_shard_degree
    if (group * shard != world) if shard > 0 else world % group:
        wrong.append(f"degrees: {group} x {shard} is not the number of GPUs, {world}")
    return wrong
