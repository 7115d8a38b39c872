"""The optimizers by the names that optim.name takes: one light row each, from which others find the class.

A new optimizer is a file in trainer/optimization with its guarded class, and a row here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class OptimizerRow:
    """One optimizer, as far as it is known without torch.

    Attributes:
        plain: its class, `module:class`: inside DeepSpeed, whose own optimizer the step guard asks.
        guarded: the class that measures, clips and asks the step guard itself (see optimization/optimizer.py).
        arguments: keys of the section that the class takes beside lr and weight_decay.
        state_per_parameter: numbers that it keeps of each parameter.
        deepspeed: its names in DeepSpeed's file, the first of them for DeepSpeed's own of an offloaded state.
        has_fused: whether its classes take torch's `fused`: one pass over memory for a whole step.
        state_per_matrix_entry: numbers that it keeps of each parameter in a matrix of the model's layers, which it then
            gets in groups of their own; None: it does not tell them from others.
        takes_precision: whether the class is told the run's precision.
        offloads: whether DeepSpeed's own may stand in for it, its state outside of the device.
    """

    plain: str
    guarded: str
    arguments: tuple[str, ...]
    state_per_parameter: int
    deepspeed: tuple[str, ...]
    has_fused: bool
    state_per_matrix_entry: int | None = None
    takes_precision: bool = False
    offloads: bool = False


OPTIMIZERS = {
    "adamw": OptimizerRow(
        plain="torch.optim:AdamW",
        guarded="longmix.trainer.optimization.adamw:GuardedAdamW",
        arguments=("betas", "eps"),
        state_per_parameter=2,
        deepspeed=("AdamW", "Adam"),
        has_fused=True,
        offloads=True,
    ),
    "muon": OptimizerRow(
        plain="longmix.trainer.optimization.muon:Muon",
        guarded="longmix.trainer.optimization.muon:GuardedMuon",
        arguments=("betas", "eps", "momentum", "update_rms"),
        state_per_parameter=2,
        deepspeed=("Muon",),
        state_per_matrix_entry=1,
        takes_precision=True,
        has_fused=True,
    ),
}
