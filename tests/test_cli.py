"""The command line: exit statuses, one line on standard error, and a help that loads nothing heavy."""

import errno
import signal
import subprocess
import sys

import pytest

from k3rl import cli, jobs
from k3rl.errors import InfrastructureError


def lines(capsys):
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["train", "rollout.slotz=3"], "slotz"),
        (["train", "learner.ranks=900"], "= 144 trajectories cannot be split over learner.ranks=900"),
        (["sft", "environment=[]"], "sft.stages is empty"),
        (["sft", "sft.stages=[{source: folder, path: /none/such}]"], "path=/none/such: no such file or folder"),
        (["train", "experiment=none_such"], "none_such"),
        (["eval", "model.path=/none/such"], "model.path=/none/such: no model folder"),
        (["train", "model.preset=nano"], "model.preset=nano: only `k3rl sft` starts from nothing"),
        (["eval", "evaluation.output=/dev/null/x"], "evaluation.output=/dev/null/x: results cannot be written there"),
        (
            ["eval", "run_dir=/dev/null/x"],
            "evaluation.output=/dev/null/eval-nano_base: results cannot be written there",
        ),
        (["env", "check", "none_such"], "none_such"),
        (["env", "check", "office", "--seeds", "0"], "--seeds 0: must be at least 1"),
    ],
)
def test_a_user_s_mistake_is_one_line_and_status_2(arguments, text, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "cluster", lambda settings: pytest.MonkeyPatch.context())  # no Ray for a wrong path
    assert cli.main(arguments) == 2
    (line,) = lines(capsys)
    assert line.startswith("k3rl: ")
    assert text in line


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (InfrastructureError("a learner rank died"), 1, "k3rl: a learner rank died"),
        (
            OSError(errno.ENOSPC, "No space left on device", "runs/x/success.png"),
            1,
            "k3rl: no room on the disk for runs/x",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "k3rl: no room on the disk for what was being written"),
        (KeyboardInterrupt(), 130, "k3rl: interrupted"),
    ],
)
def test_failures_of_known_cause_end_in_one_line(error, status, text, capsys, monkeypatch):
    def fail(config):
        raise error

    monkeypatch.setattr(jobs, "train", fail)
    assert cli.main(["train"]) == status
    (line,) = lines(capsys)
    assert line.startswith(text)


def test_termination_is_told_as_such_and_handled_once(capsys, monkeypatch):
    def terminated(config):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)  # on the way out, where it must not cut the clean-up short

    monkeypatch.setattr(jobs, "train", terminated)
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["train"]) == 143
    assert lines(capsys) == ["k3rl: terminated; the same command resumes from the last checkpoint"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_bug_is_not_hidden(monkeypatch):
    def fail(config):
        raise ZeroDivisionError

    monkeypatch.setattr(jobs, "train", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["train"])


def test_the_help_s_examples_are_runs_of_their_own():
    """One after another none of them is refused for a run folder that another one has begun."""
    lines = [line.split() for line in cli.EPILOG.splitlines() if line.startswith(("  k3rl train", "  k3rl sft"))]
    configs = [cli.compose([word for word in words if "=" in word]) for words in lines]
    assert len(configs) == 3
    assert len({config.run_dir for config in configs}) == 3


HEAVY = ("torch", "ray", "deepspeed", "transformers", "hydra", "omegaconf", "pydantic", "numpy", "pyarrow")


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["env", "--help"]])
def test_help_loads_nothing_heavy(arguments):
    program = (
        "import sys\nfrom k3rl.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        f"finally:\n    sys.stderr.write(' '.join(m for m in {HEAVY} if m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: k3rl" in done.stdout
