"""The plan of one quickstart, decided at its first call and read again at every later one."""

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import make_folder, write_json
from longmix.data_prep.state_files import read_state

FILE_NAME = "quickstart.json"
PRETRAINING_SHARE = 0.75
# `optim` of configs/recipes/small_budget.yaml, without the rate and the steps.
_SMALL_BUDGET = {"name": "muon", "update_rms": 0.5, "momentum": 0.9, "schedule": "wsd", "warmup_share": 0.06}


@dataclass(frozen=True)
class Recipe:
    """Sizes that suit a device. `samples` is the batch over all devices, `micro_batch` that of one."""

    vocab_size: int
    sequence_length: int
    model: dict[str, Any]
    samples: int
    micro_batch: int
    mask_probability: float
    lr: float
    finetune_lr: float
    # To train on, in as many passes as it takes; None: as many as the time holds, as earlier versions had it.
    tokens: int | None = None
    precision: str = "auto"  # GPUs differ in what they can
    # Of the run file's section, beside the rate and the steps.
    optim: dict[str, Any] = field(default_factory=lambda: {"schedule": "linear", "warmup_share": 0.08})

    @classmethod
    def of(cls, devices: int) -> "Recipe":
        """The recipe for this number of GPUs; 0: the CPU."""
        if devices == 0:
            return cls(
                vocab_size=4000,
                sequence_length=128,
                model={"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 512},
                samples=8,
                micro_batch=8,
                mask_probability=0.4,
                lr=1.5e-3,
                finetune_lr=5e-4,
                tokens=1_500_000,
                precision="fp32",  # the same figures on every processor
                # With batch, masks and rate that of configs/recipes/small_budget.yaml.
                optim=dict(_SMALL_BUDGET),
            )
        return cls(
            vocab_size=16000,
            sequence_length=256,
            model={"hidden_size": 512, "num_hidden_layers": 6, "intermediate_size": 2048},
            samples=64 * devices,
            micro_batch=64,
            # What teaches a model of this size the most, but for the rate: 5e-4 is best in steps of 8 rows of 128, and
            # steps of eight times as many tokens want 1.5 to 3 times the rate (docs/learning.md).
            mask_probability=0.4,
            lr=float(f"{1e-3 * devices ** (1 / 3):.2g}"),
            finetune_lr=1e-4,
            tokens=30_000_000,
            optim=dict(_SMALL_BUDGET),
        )


@dataclass
class _File:
    """The contents of quickstart.json; see `Plan`."""

    begun_in: str
    settings: dict[str, Any]
    recipe: Recipe
    speed: float | None


@dataclass
class Plan:
    """Settings of the user and what followed from them; `speed` is None until it has been measured."""

    output: Path
    begun_in: str  # paths, in the run file too, are relative to it
    settings: dict[str, Any]
    recipe: Recipe
    speed: float | None = None

    @classmethod
    def open(cls, output: str, settings: dict[str, Any], devices: int) -> "Plan":
        """The plan in `output`, or a new one.

        Raises:
            UserError: the folder holds a quickstart with other settings, or something else.
        """
        folder = Path(output)
        path = folder / FILE_NAME
        if not path.is_file():
            if folder.is_dir() and any(folder.iterdir()):
                raise UserError(f"--output {folder} already holds other files: choose another folder, or empty it")
            make_folder(folder)
            plan = cls(folder, os.getcwd(), settings, Recipe.of(devices))
            plan.save()
            return plan
        found = read_state(path, _File, "choose another --output, or move this file and what was made with it away")
        plan = cls(folder, found.begun_in, found.settings, found.recipe, found.speed)
        if plan.begun_in != os.getcwd():
            raise UserError(
                f"the quickstart in {folder} was begun in {plan.begun_in}: give the command there, or choose another "
                "--output"
            )
        changed = [
            f"--{name} was {plan.settings.get(name)}, now {value}"
            for name, value in settings.items()
            if plan.settings.get(name) != value
        ]
        if changed:
            raise UserError(
                f"{folder} holds a quickstart with other settings ({'; '.join(changed)}): choose another --output, "
                "or move it away"
            )
        return plan

    def save(self) -> None:
        values = dataclasses.asdict(self)
        values.pop("output")
        write_json(self.output / FILE_NAME, values)

    @property
    def pretraining_seconds(self) -> float:
        return 60 * self.settings["minutes"] * PRETRAINING_SHARE

    @property
    def affordable_tokens(self) -> int:
        """What the time for pre-training holds at the measured speed."""
        return int(self.pretraining_seconds * (self.speed or 0))

    @property
    def finetuning_seconds(self) -> float:
        return 60 * self.settings["minutes"] * (1 - PRETRAINING_SHARE)
