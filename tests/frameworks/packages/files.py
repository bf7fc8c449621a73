"""What the parsers share: exported files, the command of a shell script, and models' configs."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

# bash says each command that it would start, as no program is found, and starts none.
RECORDER = """
exec() { "$@"; }
command_not_found_handle() { printf '%s\\0' "$@" >>"$RECORD"; printf '\\0' >>"$RECORD"; }
"""


class Refused(Exception):
    """What a framework, or the parser here, does not accept."""


def commands(script):
    """The words of each command that a shell script starts, as bash reads them."""
    with tempfile.TemporaryDirectory() as folder:
        empty, recorder, record = Path(folder, "bin"), Path(folder, "rc"), Path(folder, "record")
        empty.mkdir()
        recorder.write_text(RECORDER)
        done = subprocess.run(
            [shutil.which("bash"), script],
            env={"PATH": str(empty), "BASH_ENV": str(recorder), "RECORD": str(record)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode or done.stdout:
            raise Refused(f"{script.name}: bash: {done.stdout.strip() or done.returncode}")
        texts = record.read_text().split("\0\0")[:-1] if record.exists() else []
        return [text.split("\0") for text in texts]


def command(folder):
    """The words of the one command of launch.sh; the files that they name must be there."""
    found = commands(folder / "launch.sh")
    if len(found) != 1:
        raise Refused(f"launch.sh: {len(found)} commands instead of one")
    for word in found[0]:
        if re.fullmatch(r"[\w.-]+\.(yaml|yml|json|toml)", word) and not (folder / word).exists():
            raise Refused(f"launch.sh: {word} does not exist")
    return found[0]


def torchrun(words):
    """The number of processes, the program and its words, of a command that is torchrun's."""
    from torch.distributed.run import get_args_parser

    for start in (["torchrun"], ["python", "-m", "torch.distributed.run"]):
        if words[: len(start)] == start:
            args = get_args_parser().parse_args(words[len(start) :])
            nodes = int(args.nnodes.split(":")[-1])
            return nodes * int(args.nproc_per_node), args.training_script, args.training_script_args
    raise Refused(f"launch.sh: {words[0]} is not torchrun")


def value_of(words, flag):
    """The word after a flag, or None."""
    return words[words.index(flag) + 1] if flag in words[:-1] else None


def read_yaml(path):
    """A YAML file as a dict, in which no key is written twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is written twice."""

    def mapping(loader, node):
        pairs = loader.construct_pairs(node, deep=True)
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise Refused(f"{path.name}: {key} is written twice")
        return dict(pairs)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    settings = yaml.load(path.read_text(), Loader)
    if not isinstance(settings, dict):
        raise Refused(f"{path.name}: no settings")
    return settings


def read_json(path):
    """A JSON file as a dict, in which no key is written twice."""

    def mapping(pairs):
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise Refused(f"{path.name}: {key} is written twice")
        return dict(pairs)

    return json.loads(path.read_text(), object_pairs_hook=mapping)


def unknown(settings, known, where):
    """What is wrong if settings have keys that are not among the known."""
    return [f"{where}: {key} is not known" for key in settings if key not in known]


def offer_model(name):
    """Makes the hub's cache answer for a model: samples/config.json, whatever it is called."""
    if not name or Path(name).exists():
        return
    model = Path(os.environ["HF_HOME"], "hub", "models--" + name.replace("/", "--"))
    snapshot = model / "snapshots" / "sample"
    if not snapshot.exists():
        snapshot.mkdir(parents=True)
        (model / "refs").mkdir()
        (model / "refs" / "main").write_text("sample")
        shutil.copy(HERE / "samples" / "config.json", snapshot)


def processes_here(world):
    """The environment of the first of that number of processes."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(world), LOCAL_WORLD_SIZE="8")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500")
