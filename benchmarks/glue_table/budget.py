"""What one table of benchmarks/glue.py spends, the same for every row."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from begun import digest

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import write_json

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
RECIPE = CONFIGS / "recipes" / "small_budget.yaml"
# The row that shows whether pre-training is worth anything, before the others run.
PILOT, PILOT_TASK = "paramixer", "imdb"
LENGTH = 128
LARGEST_VOCABULARY = 8192
BATCH = 32  # examples of a step of fine-tuning


# Of each size of configs/model: the rates that are tried, and what replaces the recipe's fields.
SIZES = {
    "tiny": {
        "rates": (7.5e-4, 1.5e-3, 3e-3, 6e-3),
        "tuning_rates": (6e-5, 2e-4, 6e-4, 2e-3, 6e-3),
        "overrides": (),
    },
    # One GPU: rows enough to fill it, in the precision that it is made for.
    "small": {
        "rates": (5e-4, 1e-3, 2e-3),
        "tuning_rates": (5e-5, 1.5e-4, 5e-4),
        "overrides": ("precision=bf16", "batch.samples=256", "batch.micro_batch=256"),
    },
}


@dataclass(frozen=True)
class Budget:
    """Everything that a run depends on beside the row.

    Attributes:
        size: of SIZES.
        tokens: of one pre-training run; each row has the same ones in the same order.
        hours: that the whole table may take, where these say how many tokens; else None.
        recipe: run file, a fragment without model and data.
        overrides: words of `longmix train` that change the recipe.
        rates: of pre-training; of several, the loss on the validation split after `search_share` of the tokens chooses.
        tuning_rates: of fine-tuning; of several, the selection split chooses.
        search_share: of `tokens`, for each rate that is tried.
        evaluations: of a pre-training run, evenly spaced: the curve against tokens.
        pretraining_seeds: also the draws of each control.
        tuning_seeds: of fine-tuning, for each seed of pre-training and task.
        control_seeds: the same for each draw of a control: fewer, for there is nothing about it to learn but its mean.
        labels: training examples of the tasks with few labels.
        passed_over: the first of IMDb's shuffled test reviews, by which the way of fine-tuning was found.
        reported: of the reviews after them, which are more than are needed to tell rows apart.
    """

    size: str
    tokens: int
    hours: float | None
    recipe: Path
    overrides: tuple[str, ...]
    rates: tuple[float, ...]
    tuning_rates: tuple[float, ...]
    search_share: float = 0.1
    evaluations: int = 10
    pretraining_seeds: int = 2
    tuning_seeds: int = 5
    control_seeds: int = 3
    labels: int = 1000
    passed_over: int = 2500
    reported: int = 2500

    @classmethod
    def of(cls, size: str, tokens: int, hours: float | None = None, recipe: Path = RECIPE) -> "Budget":
        """With the rates and overrides of its size."""
        return cls(size, tokens, hours, recipe, **SIZES[size])

    def described(self) -> dict[str, object]:
        """For the records, as JSON reads it again; the recipe by what it says, wherever it lies."""
        return json.loads(json.dumps({**asdict(self), "recipe": f"{self.recipe.name} {digest(self.recipe)[:12]}"}))

    def refuse_another(self, work: Path) -> None:
        """Note this budget in the work folder.

        Raises:
            UserError: its runs were begun with another one.
        """
        path = work / "budget.json"
        if not path.is_file():
            write_json(path, self.described())
            return
        if told := self.changes(json.loads(path.read_text(encoding="utf-8"))):
            raise UserError(f"--work {work} was begun with another budget ({told}): choose another folder")

    def changes(self, before: dict[str, object]) -> str:
        """What is another in this budget than in one that was described, in words; empty where nothing is."""
        mine = self.described()
        return ", ".join(
            f"{name} {before.get(name)}, now {mine[name]}" for name in mine if before.get(name) != mine[name]
        )
