"""DeepSpeed ZeRO 1 around a module: gradients summed over ranks, state gathered by parameter name.

What DeepSpeed would do by itself and what is wanted here differ in two ways, both handled in this file. It averages
gradients over ranks and accumulation steps, while our loss is normalised over the whole optimizer step already: the
loss is multiplied by the number of ranks, and the caller owns the accumulation boundary. And its checkpoints are
pickles cut to the number of ranks: ours hold whole tensors by name, so that any number of ranks reads them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor, nn

from k3rl.errors import CheckpointError, InfrastructureError, UserError
from k3rl.learner.optimizer import ParameterGroup

MOMENTS = ("exp_avg", "exp_avg_sq")


def meeting_point(world: int, seconds: float = 600.0) -> dist.Store:
    """Where `world` ranks meet, for rank 0 to make and keep: its `port` is bound by the system, and from now on."""
    return dist.TCPStore(
        "0.0.0.0", 0, world, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=seconds)
    )


def join(*, rank: int, world: int, rendezvous: str | dist.Store = "", seconds: float = 600.0) -> None:
    """Join the process group of `world` ranks, once per process; every collective waits at most `seconds`.

    rendezvous: `tcp://host:port` or `file:///path`, the same for all ranks; a single rank needs none. Rank 0 may give
    its `meeting_point` instead, the others `tcp://host:port` of that.
    """
    if isinstance(rendezvous, str) and rendezvous.startswith("tcp://"):
        parts = urlsplit(rendezvous)
        if not parts.hostname or not parts.port:
            raise UserError(f"rendezvous {rendezvous!r}: must be tcp://host:port")
    if dist.is_initialized():
        if (dist.get_rank(), dist.get_world_size()) != (rank, world):
            raise InfrastructureError(
                f"this process is rank {dist.get_rank()} of {dist.get_world_size()} already, not {rank} of {world}: "
                "start each learner rank in a process of its own"
            )
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    limit = timedelta(seconds=seconds)
    if world == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=limit)
    elif not rendezvous:
        raise UserError(f"{world} learner ranks need a rendezvous address, e.g. tcp://127.0.0.1:29500")
    elif isinstance(rendezvous, str) and not rendezvous.startswith("tcp://"):
        dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world, timeout=limit)
    else:
        store = _tcp_store(rendezvous, rank, world, limit) if isinstance(rendezvous, str) else rendezvous
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)


def _tcp_store(address: str, rank: int, world: int, limit: timedelta) -> dist.Store:
    """Made here, not by torch from the address: its own would keep its keys under a prefix, apart from the others'."""
    parts = urlsplit(address)
    return dist.TCPStore(parts.hostname, parts.port, world, is_master=rank == 0, timeout=limit)


class Sharded:
    """The optimizer of a module whose parameters are replicated and whose optimizer state is split over ranks.

    `backward` any number of times (the same number on every rank), then `step`. Parameters live in `module` as ever.
    """

    def __init__(
        self,
        module: nn.Module,
        groups: Sequence[ParameterGroup],
        *,
        learning_rate: float,
        betas: tuple[float, float],
        epsilon: float,
        clip_gradient: float,
    ) -> None:
        self.world = dist.get_world_size()
        self._named = [pair for group in groups for pair in group.parameters]
        self._rates = [group.rate for group in groups]
        self._learning_rate = learning_rate
        self._adam = torch.optim.AdamW(
            [{"params": [p for _, p in g.parameters], "weight_decay": g.weight_decay} for g in groups],
            lr=learning_rate,
            betas=betas,
            eps=epsilon,
        )
        self._engine = _initialize(module, self._adam, clip_gradient)
        self._start_moments()

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of this rank's share of the loss."""
        self._engine.backward(loss * self.world)

    def step(self, scale: float) -> float:
        """Update with the learning rate times `scale`; returns the global gradient norm before clipping.

        A gradient that is not finite changes nothing and raises UserError.
        """
        for group, rate in zip(self._adam.param_groups, self._rates, strict=True):
            group["lr"] = self._learning_rate * rate * scale
        self._engine.step()
        if not self._engine.was_step_applied():
            raise UserError(
                "the gradient is not finite: no weight was changed; lower learner.learning_rate (of sft: the "
                "stage's), with which the run goes on, or look at the batch"
            )
        return float(self._engine.get_global_grad_norm())

    def gradients(self) -> dict[str, Tensor]:
        """This rank's accumulated gradients by name, before `step`: for tests and probes."""
        return {name: p.grad.detach().clone() / self.world for name, p in self._named if p.grad is not None}

    def state(self) -> dict[str, Tensor]:
        """fp32 masters, both moments and the step counter, whole, by name: collective, alike on every rank."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        tensors = {"step": next(iter(self._adam.state.values()))["step"].reshape(1).clone()}
        for name, parameter in self._named:
            tensors[f"master.{name}"] = safe_get_full_fp32_param(parameter)
            for key in MOMENTS:
                tensors[f"{key}.{name}"] = safe_get_full_optimizer_state(parameter, key)
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state` gave, from any number of ranks; parameters follow their masters."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        wanted = {"step", *(f"{kind}.{name}" for name, _ in self._named for kind in ("master", *MOMENTS))}
        if wanted != tensors.keys():
            odd = sorted(wanted ^ tensors.keys())
            raise CheckpointError(
                f"optimizer state is of another model or stage: {odd[0]} and {len(odd) - 1} others differ"
            )
        for state in self._adam.state.values():
            state["step"].fill_(tensors["step"].item())
        for name, parameter in self._named:
            master = tensors[f"master.{name}"]
            if master.shape != parameter.shape:
                raise CheckpointError(
                    f"optimizer state of {name} is {tuple(master.shape)}, not {tuple(parameter.shape)}"
                )
            parameter.data.copy_(master)
            safe_set_full_fp32_param(parameter, master)
            for key in MOMENTS:
                safe_set_full_optimizer_state(parameter, tensors[f"{key}.{name}"], key)

    def _start_moments(self) -> None:
        """Moments exist from the start: DeepSpeed links parameters to them once, at the first group's first step,
        when torch would not have made those of the other groups yet."""
        for group in self._adam.param_groups:
            for flat in group["params"]:
                self._adam.state[flat] = {"step": torch.tensor(0.0), **{key: torch.zeros_like(flat) for key in MOMENTS}}
        self._engine.optimizer._lazy_init_hp_params_optimizer_state()


def _initialize(module: nn.Module, optimizer: torch.optim.Optimizer, clip_gradient: float):  # type: ignore[no-untyped-def]
    """The DeepSpeed engine. Imported here, not above: the environment decides its accelerator and build folder."""
    cuda = torch.cuda.is_available()
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if cuda else "cpu")
    os.environ.setdefault("LOCAL_RANK", "0")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(cache / "k3rl" / "torch_extensions"))
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # building it takes minutes; gloo serves
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,  # step() is the boundary: micro-batches per step vary
        "gradient_clipping": clip_gradient,
        "zero_optimization": {"stage": 1, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
    }
    with _without_compiler():
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    return engine


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    """DeepSpeed compiles optimizers at import that are not used here: seconds, and memory, per process."""
    before = os.environ.get("TORCHDYNAMO_DISABLE")
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    try:
        yield
    finally:
        os.environ.pop("TORCHDYNAMO_DISABLE")
        if before is not None:
            os.environ["TORCHDYNAMO_DISABLE"] = before
