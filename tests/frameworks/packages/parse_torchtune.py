"""torchtune: train.yaml, with config.validate, which holds each block with a _component_ to it.

Keys at the top are read by a recipe's Python; here they must be in one of the package's own
configs, or be read as cfg.get("KEY") by the recipe that launch.sh starts.
"""

import re
from functools import cache
from pathlib import Path

import torchtune
from files import Refused, command, read_yaml, unknown, value_of
from omegaconf import OmegaConf
from torchtune import config

RECIPES = Path(torchtune.__file__).resolve().parents[1] / "recipes"


@cache
def known():
    """The keys at the top of the package's own configs."""
    return {key for path in (RECIPES / "configs").rglob("*.yaml") for key in OmegaConf.load(path)}


def problems(folder):
    """What is wrong with a folder."""
    path = folder / "train.yaml"
    read = set()
    if (folder / "launch.sh").exists():
        words = command(folder)
        recipe = RECIPES / f"{words[words.index('--config') - 1]}.py"
        if value_of(words, "--config") != path.name or not recipe.exists():
            raise Refused(f"launch.sh: {recipe.stem} is not a recipe, or it does not read train.yaml")
        read = set(re.findall(r'cfg\.get\("(\w+)"', recipe.read_text()))
    wrong = unknown(read_yaml(path), known() | read, "train.yaml")
    config.validate(OmegaConf.load(path))
    return wrong
