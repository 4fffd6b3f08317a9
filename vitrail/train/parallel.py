"""One objective on many processes: DDP, FSDP2, or FSDP2 within groups that are copies of each other (HSDP).

DDP keeps the weights whole on each process and averages gradients. FSDP2 gives each process a part of every weight,
gathers a layer's weights when it runs and scatters its gradients after. With `replicas` R > 1 the processes form R
groups: sharded within a group, averaged between them.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from vitrail.errors import ConfigError
from vitrail.runtime.distributed import world
from vitrail.train.settings import TrainingSettings

# The parts that are gathered one at a time.
LAYERS = re.compile(r".*(blocks|stages)\.\d+")


def distribute(objective: nn.Module, training: TrainingSettings, device: torch.device) -> nn.Module:
    """Return the module that the loop calls: the objective itself, or a wrapper. FSDP2 shards it in place."""
    if training.parallel == "fsdp":
        replicas = training.replicas
        shape = (world(),) if replicas == 1 else (replicas, world() // replicas)
        names = ("shard",) if replicas == 1 else ("replicate", "shard")
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
        # Inputs keep their precision: shares of a mixture are not to be rounded. Autocast does the rest.
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if training.precision == "bf16" else None,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        for name, module in objective.named_modules():
            if LAYERS.fullmatch(name):
                fully_shard(module, mesh=mesh, mp_policy=policy)
        fully_shard(objective, mesh=mesh, mp_policy=policy)
        return objective
    return objective if world() == 1 else averaging(objective, device)


def averaging(objective: nn.Module, device: torch.device) -> DistributedDataParallel:
    """DDP that reduces gradients in the same order from its first step on.

    DDP arranges its buckets in the order in which the first backward pass computes gradients, and uses them from the
    second on. On three processes or more a sum depends on the place in a bucket, so the first step of a resumed run
    would round differently. Therefore a backward pass through nothing but the parameters comes first.
    """
    module = DistributedDataParallel(
        WithParameters(objective), device_ids=[device] if device.type == "cuda" else None
    )
    module(None).backward()
    for w in objective.parameters():
        w.grad = None
    return module


class WithParameters(nn.Module):
    """An objective; without a batch, the sum of what it trains, whose gradients come last parameter first."""

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, batch: dict[str, Tensor] | None) -> Any:
        if batch is not None:
            return self.objective(batch)
        return torch.stack([w.sum() for w in self.objective.parameters() if w.requires_grad]).sum()


def check_processes(training: TrainingSettings, batch_size: int, processes: int) -> None:
    """Raise an error if this number of processes cannot share a batch, or the weights."""
    if processes < 1 or batch_size % (processes * training.grad_accum):
        raise ConfigError(
            f"batch_size {batch_size} cannot be split into equal parts: {processes} for the processes, times "
            f"{training.grad_accum} (grad_accum)"
        )
    parallel, replicas = training.parallel, training.replicas
    if replicas != 1 and parallel != "fsdp":
        raise ConfigError(f"replicas={replicas} are groups of shards: they need parallel=fsdp")
    if replicas < 1 or processes % replicas:
        raise ConfigError(
            f"replicas={replicas}: {processes} processes cannot form {replicas} groups of equal size"
        )


def synchronise(module: nn.Module, wanted: bool) -> None:
    """Let the next backward pass share its gradients, or not: only the last one of an accumulation does."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(wanted)
    elif isinstance(module, DistributedDataParallel):
        module.require_backward_grad_sync = wanted


def gather_root(objective: nn.Module, wanted: bool) -> None:
    """Gather the weights of the root for evaluators, which call parts of the model, not the sharded whole."""
    if isinstance(objective, FSDPModule):
        if wanted:
            # A resumed run may begin with an evaluation, and FSDP2 takes what runs first for the whole.
            objective._get_fsdp_state()._lazy_init()
            objective.unshard()
        else:
            objective.reshard()


def gather_tensor(t: Tensor) -> Tensor:
    return t.full_tensor() if isinstance(t, DTensor) else t
