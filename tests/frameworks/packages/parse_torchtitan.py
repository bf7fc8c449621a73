"""torchtitan: the flags of launch.sh, with its ConfigManager, which refuses unknown ones."""

from files import Refused, command, processes_here, torchrun
from torchtitan.config import ConfigManager

HARMLESS = [r"initial_load_model_only=True has no effect"]  # its own default


def problems(folder):
    """What is wrong with a folder."""
    world, program, flags = torchrun(command(folder))
    if program not in ("torchtitan.train", "train.py"):
        raise Refused(f"launch.sh: {program} is not torchtitan.train")
    processes_here(world)
    ConfigManager().parse_args(flags)
    return []
