"""Parses exported files with the classes of a framework; tests/frameworks/packages/run says how.

parse_FRAMEWORK.py has the function problems(folder), which gives a list of what is wrong, or
raises, and may have HARMLESS, regular expressions of what the framework prints and no one needs to
know.
"""

import importlib
import os
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from files import HERE, Refused

# What a framework prints of keys that have no effect.
WARNED = re.compile(
    r"unknown|unrecogni[sz]ed|unexpected|deprecat|ignor|unused|not used|no effect|dropping|"
    r"not a valid|removed|overrid",
    re.IGNORECASE,
)
# What Python puts around a warning: where it is, and the line that gives it.
CALLER = re.compile(r"^warnings\.warn\(.*|^\S+\.py:\d+: ")
LENGTH = 400  # characters of what is said of a folder


class Output:
    """What is printed from here on, by whatever means, can be read; say() is still heard."""

    def __init__(self):
        self.terminal = os.fdopen(os.dup(1), "w", buffering=1)
        self.file = tempfile.TemporaryFile("w+", errors="replace")
        os.dup2(self.file.fileno(), 1)
        os.dup2(self.file.fileno(), 2)

    def say(self, text):
        """Prints a line."""
        print(text, file=self.terminal)

    def take(self):
        """The lines since the last call."""
        sys.stdout.flush()
        sys.stderr.flush()
        self.file.seek(0)
        text = self.file.read()
        self.file.seek(0)
        self.file.truncate()
        return [line.strip(" \t│╭╰╮╯─") for line in text.splitlines()]


def check(parser, folder, output):
    """What is wrong with a folder, in one line; empty if nothing is."""
    environment, here = dict(os.environ), os.getcwd()
    wrong = []
    output.take()
    try:
        with tempfile.TemporaryDirectory() as scratch:  # some frameworks write where they are
            copy = Path(shutil.copytree(folder, Path(scratch, Path(folder).name)))
            os.chdir(copy)
            wrong = list(parser.problems(copy))
        lines = output.take()
    except SystemExit:  # a parser of flags, which has printed why
        lines = output.take()
        said = [line for line in lines if re.search("error:|unrecogni", line, re.I)]
        wrong, lines = [" ".join(said[-3:] or lines[-3:]) or "it ends the program"], []
    except (Exception, Refused) as error:  # pylint: disable=broad-exception-caught
        lines = output.take()
        kind = "" if isinstance(error, Refused) else f"{type(error).__name__}: "
        wrong = [kind + " ".join(str(error).split())]
        if os.environ.get("TRACE"):
            import traceback

            output.say(traceback.format_exc())
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(environment)
    harmless = re.compile("|".join(getattr(parser, "HARMLESS", [])) or "$^")
    for line in lines:
        line = CALLER.sub("", line)
        if WARNED.search(line) and not harmless.search(line):
            wrong.append(f"it says: {line}")
    return " ".join("; ".join(dict.fromkeys(wrong)).split())[:LENGTH]


def check_folders(parser, folders, output):
    """Says what is wrong with each folder; whether nothing is."""
    accepted = True
    for folder in folders:
        wrong = check(parser, folder, output)
        output.say(f"{folder}: {wrong}" if wrong else f"ok {folder}")
        accepted = accepted and not wrong
    return accepted


def check_itself(parser, samples, output):
    """Whether samples are accepted, and refused with a misspelt key, by its name."""
    folders = sorted(path for path in samples.iterdir() if path.is_dir())
    accepted = check_folders(parser, folders, output)
    cases = [line.split() for line in (samples / "misspelt").read_text().splitlines()]
    for name, right, misspelt in cases:
        with tempfile.TemporaryDirectory() as scratch:
            broken = Path(scratch, Path(name).parent)
            shutil.copytree(samples / broken.name, broken)
            file = Path(scratch, name)
            text = file.read_text()
            file.write_text(text.replace(right, misspelt, 1))
            wrong = check(parser, broken, output)
        key = re.escape(misspelt.lstrip("+"))
        refused = right in text and re.search(rf"(?<!\w){key}(?![\w-])", wrong)
        accepted = accepted and bool(refused)
        output.say(f"{'ok' if refused else 'NOT REFUSED'} {name} with {misspelt}: {wrong}")
    return accepted and len(folders) > 0 and len(cases) > 0


def main():
    framework, folders = sys.argv[1], sys.argv[2:]
    output = Output()
    warnings.simplefilter("always")
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(
            HF_HOME=home,
            HF_HUB_OFFLINE="1",
            HF_DATASETS_OFFLINE="1",
            CUDA_VISIBLE_DEVICES="",
            DS_ACCELERATOR="cpu",
            WANDB_MODE="disabled",
            DO_NOT_TRACK="1",
            COLUMNS="1000",
        )
        os.chdir(home)  # for what frameworks write as they are imported
        try:
            parser = importlib.import_module("parse_" + framework.replace("-", "_"))
        except Exception as error:  # pylint: disable=broad-exception-caught
            for line in output.take():
                output.say(line)
            output.say(f"{framework}: cannot be imported: {type(error).__name__}: {error}")
            return 2
        if folders == ["--self-check"]:
            return 0 if check_itself(parser, HERE / "samples" / framework, output) else 1
        return 0 if check_folders(parser, folders, output) else 1


if __name__ == "__main__":
    sys.exit(main())
