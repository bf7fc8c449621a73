"""Prints the lines of each file of engine/cuda that a build's tests have executed. See run."""

import collections
import gzip
import json
import os
import subprocess
import sys
import tempfile

LEAST = 85  # per cent of a file's lines
SUBJECT = "engine/cuda/"
FEWEST = 10  # lines that a file must have to be held to it: gcov counts implicit destructors as one
# They forward each function to the vendor's library, which the tests replace.
LOADERS = ("engine/cuda/cublaslt_loader.cpp", "engine/cuda/nccl_loader.cpp")


def executed(folder):
    """By file: by line, how often it was executed by all programs together."""
    lines = collections.defaultdict(collections.Counter)
    data = [os.path.abspath(os.path.join(root, name)) for root, _, names in os.walk(folder)
            for name in names if name.endswith(".gcda")]
    with tempfile.TemporaryDirectory() as work:
        for i, path in enumerate(data):
            place = os.path.join(work, str(i))
            os.mkdir(place)
            subprocess.run(["gcov", "--json-format", path], cwd=place, check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for name in os.listdir(place):
                with gzip.open(os.path.join(place, name), "rt", encoding="utf-8") as file:
                    for source in json.load(file)["files"]:
                        subject = os.path.relpath(source["file"], os.getcwd())
                        if not subject.startswith(SUBJECT) or subject in LOADERS:
                            continue
                        for line in source["lines"]:
                            lines[subject][line["line_number"]] += line["count"]
    return lines


def main():
    lines = executed(sys.argv[1])
    low = []
    print("%-44s %7s %9s %9s" % ("file", "lines", "executed", "share"))
    for subject in sorted(lines):
        counts = lines[subject]
        done = sum(count > 0 for count in counts.values())
        share = 100 * done / len(counts)
        print("%-44s %7d %9d %7.1f %%" % (subject, len(counts), done, share))
        if share < LEAST and len(counts) >= FEWEST:
            missed = [str(line) for line in sorted(counts) if counts[line] == 0]
            low.append("%s: not executed: %s" % (subject, ", ".join(missed)))
    for text in low:
        print(text)
    return 1 if low or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
