"""ms-swift: train.yaml, with SftArguments; a key that is left over is refused, as `swift sft` does.

Faked: that GPUs can do bfloat16. Models are looked up on Hugging Face's hub, as with USE_HF=1.
"""

import os

import transformers.training_args
from files import Refused, offer_model, read_yaml

os.environ["USE_HF"] = "1"
transformers.training_args.is_torch_bf16_gpu_available = lambda: True

HARMLESS = [r"`torch_dtype` is deprecated"]  # its own name, which transformers has changed

# pylint: disable=wrong-import-position
from swift.arguments import SftArguments  # noqa: E402
from swift.cli.main import parse_yaml_args  # noqa: E402
from swift.utils import parse_args  # noqa: E402


def problems(folder):
    """What is wrong with a folder."""
    path = folder / "train.yaml"
    offer_model(read_yaml(path).get("model"))
    words = [str(path)]
    parse_yaml_args(words)
    _, rest = parse_args(SftArguments, words)
    if rest:
        raise Refused(f"train.yaml: {' '.join(rest)} is not known")
    return []
