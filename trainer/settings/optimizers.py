"""The optimizers by their names: one light row each, from which trainer/optimization finds the class.

A new optimizer is a file in trainer/optimization with its guarded class, and a row here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class OptimizerRow:
    """One optimizer, as far as it is known without torch.

    Attributes:
        name: optim.name of a run file.
        plain: its class, `module:class`: inside DeepSpeed, whose own optimizer the step guard asks.
        guarded: the class that measures, clips and asks the step guard itself (see optimization/optimizer.py).
        arguments: keys of the section that the class takes beside lr and weight_decay.
        state_per_parameter: numbers that it keeps of each parameter.
        deepspeed: its names in DeepSpeed's file, the first of them for DeepSpeed's own of an offloaded state.
    """

    name: str
    plain: str
    guarded: str
    arguments: tuple[str, ...]
    state_per_parameter: int
    deepspeed: tuple[str, ...]


OPTIMIZERS = {
    row.name: row
    for row in (
        OptimizerRow(
            "adamw",
            plain="torch.optim:AdamW",
            guarded="longmix.trainer.optimization.adamw:GuardedAdamW",
            arguments=("betas", "eps"),
            state_per_parameter=2,
            deepspeed=("AdamW", "Adam"),
        ),
    )
}
