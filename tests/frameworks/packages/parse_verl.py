"""verl: the overrides of launch.sh, with hydra, verl's own files and its validate_config.

hydra refuses to override what is not there. What is added with + must be a field of the class that
the block names, or stand in a block that is empty in verl's files, such as override_config. The
critic is not validated: its model would be read from the hub.
"""

import dataclasses
from pathlib import Path

import verl.trainer.config
from files import Refused, command, offer_model
from hydra import compose, initialize_config_dir
from hydra.utils import get_class
from omegaconf import OmegaConf
from verl.trainer.ppo.utils import need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

PROGRAMS = {
    "verl.trainer.main_ppo": "ppo_trainer",
    "verl.trainer.sft_trainer": "sft_trainer_engine",
}
FOLDER = Path(verl.trainer.config.__file__).resolve().parent


def program_of(words):
    """The name of the config that a command starts with, and its overrides."""
    for at, word in enumerate(words):
        if word in PROGRAMS:
            name, overrides = PROGRAMS[word], []
            for override in words[at + 1 :]:
                if override.startswith("--config-name="):
                    name = override.partition("=")[2]
                else:
                    overrides.append(override)
            return name, overrides
    raise Refused("launch.sh: no program of verl")


def unknown_keys(settings, original, at=""):
    """Keys that neither verl's files nor the class of their block have."""
    fields = []
    if "_target_" in settings:
        fields = [field.name for field in dataclasses.fields(get_class(settings["_target_"]))]
    for key, value in settings.items():
        if original and key not in original and key not in fields:
            yield f"{at}{key}"
        elif isinstance(value, dict) and isinstance(original.get(key), dict) and original[key]:
            yield from unknown_keys(value, original[key], f"{at}{key}.")


def problems(folder):
    """What is wrong with a folder."""
    name, overrides = program_of(command(folder))
    with initialize_config_dir(str(FOLDER), version_base=None):
        original, config = compose(name), compose(name, overrides=overrides)
    plain = [OmegaConf.to_container(each, resolve=False) for each in (config, original)]
    wrong = [f"launch.sh: {key} is not known" for key in unknown_keys(*plain)]
    if not wrong and "actor_rollout_ref" in config:
        offer_model(config.actor_rollout_ref.model.path)
        omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        validate_config(config, need_reference_policy(config), use_critic=False)
    return wrong
