"""Runs a recipe in forked children and kills them with SIGKILL, again and again.

    python kill_driver.py FOLDER SEED KILLS STEPS

Imports happen once, in the parent. A first child trains FOLDER/whole undisturbed. Each of the
others resumes FOLDER/killed and is killed after a random time, or, every other time, right at one
of its file operations. The parent prints how many were killed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # no GPU can be used in a forked process

import torch._dynamo  # the optimizers import it

from sfumato.recipe import from_dict
from sfumato.training import run_folder
from sfumato.training.pipeline import resume, train

RECIPE = {
    "name": "killed",
    "privacy": {"epsilon": 50.0, "noise_multiplier": 2.0},
    "model": {"options": {"filters": 4}},
    "optimizer": {"name": "nadam", "lr": 0.01},
    "augment": {"crop": 1, "flip": True},
    "training": {
        "seed": 7,
        "batch": 400,
        "average": 0.9,
        "views": 2,
        "checkpoint_every": 4,
        "log_every": 3,
        "physical_batch": 150,
    },
}


def die_at_operation(number: int) -> None:
    """Have this process kill itself at its `number`-th file operation."""
    left = number

    def counted(function):  # type: ignore[no-untyped-def]
        def wrapper(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal left
            left -= 1
            if left == 0:
                if function is os.write and len(args[1]) > 10:
                    function(args[0], args[1][:10])
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapper

    for name in ("write", "fsync", "replace"):
        setattr(os, name, counted(getattr(os, name)))


def live(folder: Path, steps: int) -> None:
    torch.set_num_threads(1)
    if (folder / run_folder.LEDGER).exists():
        resume(folder, device="cpu")
    else:
        shutil.rmtree(folder, ignore_errors=True)  # killed before the run had started
        recipe = from_dict(RECIPE).replace({"training.steps": steps})
        train(recipe, out=folder, device="cpu")


def drive(folder: Path, steps: int, kills: int, rng: random.Random) -> int:
    """Train in children until one ends by itself; the number of those that were killed."""
    killed = 0
    while True:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if killed < kills and killed % 2:
                    die_at_operation(rng.randrange(3, 25))
                live(folder, steps)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        if killed < kills and killed % 2 == 0:
            time.sleep(rng.uniform(0.2, 1.0))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            if os.WEXITSTATUS(status):
                sys.exit("a child failed")
            break
        killed += 1
    return killed


def main() -> None:
    folder, (seed, kills, steps) = Path(sys.argv[1]), map(int, sys.argv[2:])
    rng = random.Random(seed)
    drive(folder / "whole", steps, 0, rng)
    print(drive(folder / "killed", steps, kills, rng))


if __name__ == "__main__":
    main()
