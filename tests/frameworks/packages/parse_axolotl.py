"""Axolotl: axolotl.yaml and ds_config.json.

Its command line validates the file with AxolotlInputConfig and the classes of its plugins, which
let unknown keys pass at the top, in fsdp_config and in others. Here no key may be missing in the
class that reads it. Faked: eight GPUs of compute capability 9.0. The package asks for Python 3.12,
of which its schemas use nothing.
"""

import typing

import pydantic
import torch
from axolotl.integrations.config import merge_input_args
from axolotl.utils.config import prepare_plugins, validate_config
from axolotl.utils.dict import DictDefault
from deepspeed_json import deepspeed_problems
from files import offer_model, read_json, read_yaml

CAPABILITIES = {
    "bf16": True,
    "fp8": True,
    "tf32": True,
    "n_gpu": 8,
    "n_node": 1,
    "compute_capability": "sm_90",
}


def models_in(annotation):
    """The pydantic classes that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in models_in(part)]


def unknown_keys(settings, models, at=""):
    """Keys that are fields of none of the classes, at all levels."""
    for key, value in settings.items():
        fields = [
            field
            for model in models
            for name, field in model.model_fields.items()
            if key in (name, field.alias, field.validation_alias)
        ]
        if not fields:
            yield f"{at}{key}"
        within = [model for field in fields for model in models_in(field.annotation)]
        for part in value if isinstance(value, list) else [value]:
            if within and isinstance(part, dict):
                yield from unknown_keys(part, within, f"{at}{key}.")


def problems(folder):
    """What is wrong with a folder."""
    path = folder / "axolotl.yaml"
    settings = read_yaml(path)
    offer_model(settings.get("base_model"))
    config = DictDefault(read_yaml(path))
    prepare_plugins(config)
    merged = merge_input_args()[1]  # with the fields of plugins
    wrong = [f"axolotl.yaml: {key} is not known" for key in unknown_keys(settings, [merged])]
    for key in settings:
        if key in merged.model_fields and merged.model_fields[key].deprecated:
            wrong.append(f"axolotl.yaml: {key} is deprecated")
    environment = {"torch_version": torch.__version__.partition("+")[0]}
    try:
        validate_config(config, capabilities=CAPABILITIES, env_capabilities=environment)
    except ValueError as error:
        wrong.append(str(error))
    if (folder / "ds_config.json").exists():
        wrong += deepspeed_problems(read_json(folder / "ds_config.json"), "ds_config.json")
    return wrong
