"""The program under test, and files of schedules as lists."""

import csv
import json
import os
import subprocess
from pathlib import Path


class Refused(Exception):
    """The program ended with another status than 0; holds what it says."""


def longspan(*words):
    """What the program prints."""
    command = [os.environ["LONGSPAN"], *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Refused(done.stderr.strip())
    return done.stdout


def longspan_json(*words):
    return json.loads(longspan(*words, "--json"))


def make(path, name, ranks, microbatches, *words):
    """Has the program write one of its schedules to `path`."""
    longspan(
        "schedule", name, "--stages", ranks, "--microbatches", microbatches, *words, "--csv", path
    )


def rewrite(path, source, *words):
    """Has the program read the file `source` and write it to `path`."""
    longspan("schedule", source, *words, "--csv", path)


def cells(path):
    """By rank, the actions of a file as text; idle cells left out."""
    with Path(path).open(newline="") as file:
        return [[cell for cell in row if cell] for row in csv.reader(file)]
