"""Runs that are killed: at random times, and before every single operation on files that a save makes.

One script forks the runs that are killed, so that torch is imported once.
"""

import subprocess
import sys

SCRIPT = """
import os, random, shutil, signal, sys, time
from pathlib import Path
import torch
from vitrail.checkpoints.run import Run
from vitrail.runtime import files

torch.set_num_threads(1)
top = Path(sys.argv[1])
OPERATIONS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}


def state_of(step):
    return {"w": torch.full((20_000,), float(step)), "step": torch.tensor(step)}


def go_on(path, last, keep=2, ready=None):
    run = Run.open(path, {}, keep=keep)
    step, _ = run.restore(state_of(0)) or (0, {})
    run.rewind(step)
    if ready is not None:
        os.write(ready, b"!")
    while step < last:
        step += 1
        run.append({"step": step})
        run.save(step, state_of(step), {"step": step}, score=-step)
    return run


def child(body):
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def whole(path, least, keep=2):
    "The run can be opened, restored and gone on with; the step that it is at."
    run, state = Run.open(path, {}, keep=keep), state_of(0)
    step, facts = run.restore(state) or (0, {"step": 0})
    assert step >= least, (step, least)
    assert facts["step"] == step and all(torch.equal(t, state_of(step)[n]) for n, t in state.items())
    run.rewind(step)
    assert [row["step"] for row in run.rows()] == list(range(1, step + 1))
    assert not list(path.glob("checkpoints/.*"))
    run.close()
    return step


def at_random(path):
    reached = 0
    for _ in range(8):
        heard, ready = os.pipe()
        pid = child(lambda: go_on(path, 10**9, ready=ready))
        os.read(heard, 1)
        time.sleep(0.1 * random.random())
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        reached = whole(path, reached)
    print("at random: reached", reached)


def before_every_operation(path, then):
    "`then` is done on a run at step 3, and killed before its first operation, its second, ..."
    go_on(path / "begun", 3, keep=1).close()
    for kill_at in range(1000):
        place = path / str(kill_at)
        shutil.copytree(path / "begun", place)

        def body():
            run, count = Run.open(place, {}, keep=1), 0

            def hook(event, _):
                nonlocal count
                if event in OPERATIONS:
                    count += 1
                    if count > kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(hook)
            then(run)

        code = os.waitpid(child(body), 0)[1]
        whole(place, 3, keep=1)
        if code == 0:
            break
        assert code == signal.SIGKILL, code
    assert kill_at > 10, kill_at
    print("operations:", kill_at)


def next_step(run):
    run.append({"step": 4})
    run.save(4, state_of(4), {"step": 4})


def same_step(run):
    run.save(3, state_of(3), {"step": 3, "more": 1})


random.seed(0)
at_random(top / "random")
before_every_operation(top / "next", next_step)
before_every_operation(top / "same", same_step)
files.exchange = lambda a, b: False
before_every_operation(top / "two moves", same_step)
"""


def test_a_kill_at_any_moment_leaves_a_run_that_goes_on(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("operations:") == 3
