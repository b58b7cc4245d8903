"""`k3rl train | sft | eval | env`: every command composes conf/ by Hydra and takes overrides as `key=value`.

Errors with a known cause end in one line and a non-zero status: 2 for what the user can put right, 1 for the rest.
"""

from __future__ import annotations

import argparse
import errno
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from k3rl import __version__
from k3rl.errors import K3rlError, UserError

EPILOG = """examples:
  k3rl train experiment=quickstart               joint RL from the shipped base model; run again, it resumes
  k3rl train experiment=quickstart name=b seed=1 the same with another seed, in runs/b
  k3rl sft experiment=nano_base                  make the base model from nothing
  k3rl eval model.path=runs/quickstart/model     evaluate a model folder
  k3rl env check terminal                        check everything that must hold for a domain
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parsed = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    stop = _Stop()
    try:
        run: Callable[[argparse.Namespace], None] = parsed.run
        with stop.on_termination():
            run(parsed)
    except UserError as error:
        return _tell(error, 2)
    except K3rlError as error:
        return _tell(error, 1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        where = error.filename or "what was being written"
        return _tell(f"no room on the disk for {where}; make some, the same command resumes", 1)
    except KeyboardInterrupt:
        what, status = ("terminated", 143) if stop.terminated else ("interrupted", 130)
        return _tell(f"{what}; the same command resumes from the last checkpoint", status)
    return 0


class _Stop:
    """SIGTERM ends a command as Ctrl-C does: by the way out that releases everything."""

    def __init__(self) -> None:
        self.terminated = False

    @contextmanager
    def on_termination(self) -> Iterator[None]:
        """While the block runs, the first SIGTERM raises KeyboardInterrupt in it and later ones are ignored."""
        before = signal.signal(signal.SIGTERM, self._raise)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _raise(self, *_: object) -> None:
        self.terminated = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt  # the one exception that Ray's waits let through


def compose(overrides: Sequence[str]) -> Any:
    """The `Config` that conf/config.yaml and `overrides` give. Raises ConfigError in one line."""
    from dataclasses import asdict

    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from k3rl.config import Config, load
    from k3rl.errors import ConfigError

    schema = OmegaConf.create(asdict(Config()))
    for name, part in schema.items():
        for key, value in part.items() if isinstance(part, DictConfig) else ():
            if value == {}:  # a mapping with names of the user's own, e.g. evaluation.levels
                OmegaConf.set_struct(schema[name][key], False)
    ConfigStore.instance().store(name="schema", node=schema)
    try:
        with initialize_config_module("k3rl.conf", version_base="1.3"):
            composed = hydra_compose("config", overrides=list(overrides))
        return load(OmegaConf.to_container(composed, resolve=True))  # type: ignore[arg-type]
    except (HydraException, OmegaConfBaseException) as error:
        text, _, _ = " ".join(str(error).split()).partition(" Config search path:")  # inner matters of Hydra's
        raise ConfigError(text) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="k3rl",
        description="Joint multi-domain reinforcement learning for mixture-of-experts agent models.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"k3rl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text, run in (
        ("train", "run (or resume) a joint RL job", _train),
        ("sft", "supervised training: base models, demonstrations", _sft),
        ("eval", "evaluate a model folder, or compare two", _eval),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "overrides", nargs="*", metavar="key=value", help="Hydra overrides, e.g. experiment=quickstart"
        )
        command.set_defaults(run=run)
    env = commands.add_parser("env", help="list domains, check one")
    actions = env.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="the domains there are").set_defaults(run=_env_list)
    check = actions.add_parser("check", help="run everything that must hold for a domain")
    check.add_argument("domain")
    check.add_argument("--seeds", type=int, default=200, help="oracle episodes over all levels and splits (200)")
    check.add_argument("--model", default="nano_base", help="weak policy of the level curve; 'none' leaves it out")
    check.add_argument("--json", action="store_true", help="print the table as JSON")
    check.set_defaults(run=_env_check)
    return parser


def _train(parsed: argparse.Namespace) -> None:
    config = compose(parsed.overrides)
    from k3rl.jobs import train

    train(config)


def _sft(parsed: argparse.Namespace) -> None:
    config = compose(parsed.overrides)
    from k3rl.supervised.loop import run

    run(config)


def _eval(parsed: argparse.Namespace) -> None:
    config = compose(parsed.overrides)
    from k3rl.jobs import evaluate_model

    evaluate_model(config)


def _env_list(parsed: argparse.Namespace) -> None:
    from k3rl.evaluation.check_command import list_domains

    list_domains()


def _env_check(parsed: argparse.Namespace) -> None:
    from k3rl.evaluation.check_command import check_domain

    if not check_domain(parsed.domain, seeds=parsed.seeds, model=parsed.model, as_json=parsed.json):
        raise K3rlError(f"domain {parsed.domain}: not all checks hold; see the table above")


def _tell(what: object, status: int) -> int:
    sys.stderr.write(f"k3rl: {what}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
