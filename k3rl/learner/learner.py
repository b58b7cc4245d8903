"""The learner: one rank of it. Samples and an objective in, one optimizer step, metrics out; blind to the algorithm.

Every rank is given all samples of the step and takes its own share, so that each knows the whole step's denominator
and no gradient or loss depends on the split into micro-batches, the order of samples or the number of ranks.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from k3rl.algorithms.objectives import Objective
from k3rl.errors import CheckpointError, ConfigError, InfrastructureError
from k3rl.learner import checkpoint
from k3rl.learner.config import LearnerConfig
from k3rl.learner.experts import Flips, balance, count_loads, dither_masters
from k3rl.learner.forward import Predicted, observe, predict
from k3rl.learner.mismatch import Mismatch, Tally, report
from k3rl.learner.optimizer import parameter_groups
from k3rl.learner.packing import domain_names, pack, total_weight
from k3rl.learner.totals import Totals
from k3rl.learner.zero import Sharded, join
from k3rl.model import load_model, save_model
from k3rl.sync import Publication, publish
from k3rl.types import Batch, Sample

RNG = "rng"
FROZEN = "frozen."


class Learner:
    """One rank of a learner over a model folder.

    Ranks call the same methods with the same arguments; all but `export` are collective. `steps`: optimizer steps done.
    `model`: the module with current weights.
    """

    def __init__(
        self,
        model_folder: str | Path,
        config: LearnerConfig,
        *,
        rank: int = 0,
        world: int = 1,
        rendezvous: str | dist.Store = "",
    ) -> None:
        """`rendezvous` as in `k3rl.learner.zero.join`. Raises CheckpointError for a bad model folder."""
        if config.threads:
            torch.set_num_threads(config.threads)
        join(rank=rank, world=world, rendezvous=rendezvous, seconds=config.deadline_seconds)
        self.config, self.rank, self.world, self.steps = config, rank, world, 0
        self._folder = Path(model_folder)
        torch.manual_seed(config.seed)
        model = load_model(self._folder)
        self.model = model.to("cuda") if torch.cuda.is_available() else model
        if config.quantize is not None:
            self.model.qat = config.quantize
        self.model.sparse = config.sparse
        if config.dither and self.model.qat:
            dither_masters(self.model, config.seed)
        groups = parameter_groups(
            self.model.named_parameters(),
            train=config.train,
            weight_decay=config.weight_decay,
            expert_rate=config.expert_rate,
        )
        self.sharded = Sharded(
            self.model,
            groups,
            learning_rate=config.learning_rate,
            betas=config.betas,
            epsilon=config.epsilon,
            clip_gradient=config.clip_gradient,
        )
        self._flips = Flips(self.model if config.expert_rate > 0 else None)

    def step(self, samples: Sequence[Sample], objective: Objective, lr_scale: float = 1.0) -> dict[str, Any]:
        """One optimizer step on all samples. Without a single token that counts, nothing moves (`skipped` is 1).

        Metrics: loss and the objective's own; grad_norm (before clipping), lr, tokens (of context), trained_tokens,
        entropy; domain/<name>/{tokens, entropy, signal}: trained tokens, their mean entropy by weight, and the domain's
        share of sum |advantage|;
        experts/{flips, flip_share, alarm_still, imbalance}; for tokens that an engine sampled mismatch/{mean, p99, max,
        n, kl, histogram}, routes_differ and selections_differ, measured before the update by the same forward on these
        samples; seconds.
        """
        if self.config.train != "model":
            raise ConfigError("this learner trains the indexer: call warm_up_indexer, or set train: model")
        started = time.perf_counter()
        denominator = total_weight(samples) if samples else 0.0
        if not denominator > 0:
            self.steps += 1
            return {"loss": 0.0, "skipped": 1.0, "lr": 0.0, "trained_tokens": 0.0}
        domains, totals, tally = domain_names(samples), Totals(), Tally()
        version = max(int(sample.versions.max()) for sample in samples)
        loads = self._no_loads()
        for batch in self._share(samples):
            predicted = self._predict(batch, objective)
            outcome = objective(predicted.logp, predicted.signals, denominator)
            self.sharded.backward(outcome.loss)
            totals.add({"loss": outcome.loss, **outcome.means, **_domain_sums(predicted, batch, domains, denominator)})
            totals.raise_to(outcome.maxima)
            observe(predicted, batch, version, tally)
            if batch.domains[0] >= 0:
                loads += count_loads(predicted.output.experts, loads.shape[1])
        metrics: dict[str, Any] = self._update(totals, loads, lr_scale)
        if version >= 0:
            metrics |= _mismatch_metrics(self._gather_report(tally, domains, version))
        return {
            **_finish_domains(metrics, domains),
            "skipped": 0.0,
            "tokens": float(sum(len(sample.tokens) for sample in samples)),
            "trained_tokens": float(sum(int((sample.loss_mask[1:] > 0).sum()) for sample in samples)),
            "seconds": time.perf_counter() - started,
        }

    def warm_up_indexer(self, samples: Sequence[Sample], lr_scale: float = 1.0) -> dict[str, float]:
        """One step of the indexer alone towards the attention of all heads over all positions: mean over tokens of
        the summed KL of the layers. Loss masks do not matter: every token's attention is a target."""
        if self.config.train != "indexer" or self.config.sparse:
            raise ConfigError("warm-up of the indexer needs train: indexer and sparse: false")
        started = time.perf_counter()
        tokens = sum(len(sample.tokens) for sample in samples)
        totals = Totals()
        first = torch.zeros(1, dtype=torch.int64, device=self.model.embed.device)  # the head is not needed
        for batch in self._share(samples):
            share = len(batch.tokens) / tokens if batch.domains[0] >= 0 else 0.0
            inputs = (torch.from_numpy(array).to(first.device) for array in (batch.tokens, batch.cu_seqlens))
            output = self.model(*inputs, want=("indexer_loss",), logits_at=first)
            loss = output.indexer_loss * share
            self.sharded.backward(loss)
            totals.add({"loss": loss})
        metrics = self._update(totals, None, lr_scale)
        return {**metrics, "tokens": float(tokens), "seconds": time.perf_counter() - started}

    @torch.no_grad()
    def compare(self, samples: Sequence[Sample], *, temperature: float = 1.0, version: int | None = None) -> Mismatch:
        """How far these rollouts are from the learner's forward as it is now; `version` None takes the newest."""
        newest = max(int(sample.versions.max()) for sample in samples)
        version, tally = newest if version is None else version, Tally()
        for batch in self._share(samples):
            observe(predict(self.model, batch, temperature, ("choices",)), batch, version, tally)
        return self._gather_report(tally, domain_names(samples), version)

    def publication(self, version: int, canary_tokens: Sequence[int]) -> Publication:
        """The weights as they are, quantized once, with all that an engine verifies them by."""
        return publish(self.model, version, canary_tokens)

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint (rank 0 does): masters, moments, frozen tensors, step counter, RNG state."""
        tensors = self.sharded.state()
        trained = {name.removeprefix("master.") for name in tensors if name.startswith("master.")}
        tensors |= {FROZEN + name: t for name, t in self.model.state_dict().items() if name not in trained}
        tensors[RNG] = torch.get_rng_state()
        if self.rank == 0:
            checkpoint.write(Path(folder), {n: t.cpu() for n, t in tensors.items()}, {"steps": self.steps})
        if self.world > 1:
            dist.barrier()

    def load(self, folder: str | Path) -> None:
        """Go on from a checkpoint, to the bit with as many ranks. Raises CheckpointError naming what is wrong."""
        tensors, values = checkpoint.read(Path(folder))
        frozen = {n.removeprefix(FROZEN): tensors.pop(n) for n in list(tensors) if n.startswith(FROZEN)}
        rng = tensors.pop(RNG, None)
        if rng is None:
            raise CheckpointError(f"{folder}: {RNG} is missing: not a learner's checkpoint")
        self.sharded.load_state(tensors)
        state = self.model.state_dict()
        for name, tensor in frozen.items():
            if name not in state or state[name].shape != tensor.shape:
                raise CheckpointError(f"{folder}: {name} does not fit the model in {self._folder}")
            state[name].copy_(tensor)
        torch.set_rng_state(rng)
        self.steps = int(values["steps"])
        self._flips.restart()

    def export(self, folder: str | Path, *, packed: bool = True) -> None:
        """Write a model folder in the hub's layout (rank 0 does), with the tokenizer and other files of the one that
        training started from; `packed`: routed experts as MXFP4 bytes, else everything as fp32 masters."""
        if self.rank:
            return
        folder = Path(folder)
        try:
            save_model(self.model, folder, packed=packed)
            for source in self._folder.iterdir():
                if source.is_file() and source.name != "config.json" and ".safetensors" not in source.name:
                    shutil.copyfile(source, folder / source.name)
        except (OSError, SafetensorError) as error:  # a full disk is either, by who was writing
            raise InfrastructureError(f"model folder {folder} could not be written: {error}") from error

    def _share(self, samples: Sequence[Sample]) -> tuple[Batch, ...]:
        return pack(samples, max_tokens=self.config.max_tokens, ranks=self.world)[self.rank]

    def _predict(self, batch: Batch, objective: Objective) -> Predicted:
        return predict(self.model, batch, objective.temperature, ("choices",) if batch.experts is not None else ())

    def _no_loads(self) -> Tensor:
        config = self.model.config
        shape = (len(config.moe_layers), config.moe.num_experts)
        return torch.zeros(shape, dtype=torch.float64, device=self.model.embed.device)

    def _update(self, totals: Totals, loads: Tensor | None, lr_scale: float) -> dict[str, float]:
        sums, maxima = totals.reduced()
        norm = self.sharded.step(lr_scale)
        self.steps += 1
        balanced = {}
        if loads is not None and self.config.balance_rate > 0:
            balanced = balance(self.model, loads, self.config.balance_rate)
        rate = self.config.learning_rate * lr_scale
        return {**sums, **maxima, **balanced, **self._flips.count(), "grad_norm": norm, "lr": rate}

    def _gather_report(self, tally: Tally, domains: Sequence[str], version: int) -> Mismatch:
        tallies: list[Tally] = [tally] * self.world
        if self.world > 1:
            dist.all_gather_object(tallies, tally)
        return report(tallies, domains, version)


@torch.no_grad()
def _domain_sums(
    predicted: Predicted, batch: Batch, domains: Sequence[str], denominator: float
) -> dict[str, Tensor | float]:
    """Sums by domain, and the step's mean entropies; every domain has its entry on every rank."""
    weight, signals = predicted.signals.weight.double(), predicted.signals
    index = torch.from_numpy(batch.domains).to(weight.device)[predicted.rows].long().clamp(min=0)
    entropy = predicted.entropy.double() * weight
    sums: dict[str, Tensor | float] = {
        "entropy": entropy.sum() / denominator,
        "entropy_at_1": (predicted.entropy_at_1.double() * weight).sum() / denominator,
    }
    kinds = {
        "tokens": (weight > 0).double(),
        "weight": weight,
        "entropy": entropy,
        "signal": weight * signals.advantages.abs().double(),
    }
    for kind, values in kinds.items():
        by_domain = torch.bincount(index, weights=values, minlength=len(domains))
        sums |= {f"domain/{name}/{kind}": by_domain[place] for place, name in enumerate(domains)}
    return sums


def _finish_domains(metrics: dict[str, Any], domains: Sequence[str]) -> dict[str, Any]:
    """Turn sums by domain into the mean entropy and the share of the signal; the sum of weights has served then."""
    signal = sum(metrics[f"domain/{name}/signal"] for name in domains)
    for name in domains:
        metrics[f"domain/{name}/entropy"] /= max(metrics.pop(f"domain/{name}/weight"), 1e-30)
        metrics[f"domain/{name}/signal"] /= max(signal, 1e-30)
    return metrics


def _mismatch_metrics(mismatch: Mismatch) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "mismatch/mean": mismatch.all.mean,
        "mismatch/p99": mismatch.all.p99,
        "mismatch/max": mismatch.all.maximum,
        "mismatch/n": float(mismatch.all.n),
        "mismatch/kl": mismatch.all.kl,
        "mismatch/histogram": mismatch.all.histogram,
        "routes_differ": mismatch.routes_differ or 0.0,
        "selections_differ": mismatch.selections_differ or 0.0,
    }
    return metrics | {f"domain/{name}/mismatch": f.mean for name, f in mismatch.by_domain.items()}
