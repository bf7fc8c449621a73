"""torchtune: train.yaml, with config.validate, which holds each block with a _component_ to it.

Keys at the top are read by a recipe's Python; here they must be in one of the package's own
configs.
"""

from functools import cache
from pathlib import Path

import torchtune
from files import read_yaml, unknown
from omegaconf import OmegaConf
from torchtune import config

RECIPES = Path(torchtune.__file__).resolve().parents[1] / "recipes" / "configs"


@cache
def known():
    """The keys at the top of the package's own configs."""
    return {key for path in RECIPES.rglob("*.yaml") for key in OmegaConf.load(path)}


def problems(folder):
    """What is wrong with a folder."""
    path = folder / "train.yaml"
    wrong = unknown(read_yaml(path), known(), "train.yaml")
    config.validate(OmegaConf.load(path))
    return wrong
