"""Forecasting: what follows a window of the past, by squared error, and naive forecasts to compare with.

Errors are of standardised values (data_prep/tasks/forecasting.py), as those in the tables of the papers.
"""

import numpy as np
import torch

from longmix.data_prep.manifest import Manifest

from ..samples.collate import Batch, Sample
from ..samples.order import Draw
from ..settings.forecast_figures import ERRORS, MOST_VARIABLES, of_variable
from ..settings.sections import ObjectiveSection
from .model_inputs import accepted, with_auxiliary_loss


def forecasting(auto_class, section: ObjectiveSection, seed: int, manifest: Manifest, load_tokenizer):
    """The maker that the row of settings/objectives.py names."""
    return Forecasting(auto_class, manifest)


class Forecasting:
    """Mean squared error of the horizon; mean absolute error beside it.

    Args:
        manifest: manifest of a series: it says after how many steps that may repeat itself.

    Attributes:
        variables: those that evaluations have figures of; by default none where there are many.
    """

    accuracy_name = "mae"

    def __init__(self, auto_class: type, manifest: Manifest):
        self.auto_class, self.season = auto_class, manifest.series["season"]
        names = manifest.series["names"]
        self.variables = names if len(names) <= MOST_VARIABLES else []

    def training_batch(self, samples: list[Sample], draw: Draw) -> Batch:
        return _stacked(samples)

    def evaluation_batch(self, samples: list[Sample], indices: np.ndarray) -> Batch:
        return _stacked(samples)

    def rehearsal_batch(self, samples: list[Sample]) -> Batch:
        return _stacked(samples)

    def items(self, batch: Batch) -> int:
        return len(batch["labels"])

    def forward(self, model: torch.nn.Module, batch: Batch, items: torch.Tensor | int):
        """(loss, sums): the loss over `items` windows, and (3,) float32 sums of squared and absolute errors (means of
        each window) and of windows, detached."""
        squared, absolute, auxiliary_loss = self._errors(model, batch)
        loss = with_auxiliary_loss(model, squared.sum() / items, auxiliary_loss, len(squared), items)
        return loss, _sums(squared, absolute)

    def evaluation(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, np.ndarray]:
        """Sums as `forward` gives, and (B, F) outputs: squared and absolute errors of each naive forecast; then those
        of model and naive forecasts for each variable, where these are told apart."""
        forecast = self._forecast(model, batch).logits.float()
        squared, absolute = errors(forecast, batch["labels"])
        forecasts = naive_forecasts(batch["values"], batch["labels"].shape[1], self.season)
        found = [error[:, None] for naive in forecasts.values() for error in errors(naive, batch["labels"])]
        if self.variables:
            each = (forecast, *forecasts.values())
            found += [error for one in each for error in errors_of_variables(one, batch["labels"])]
        return _sums(squared, absolute).double(), torch.cat(found, dim=1).cpu().numpy()

    def _forecast(self, model: torch.nn.Module, batch: Batch):
        return model(**accepted(model, batch, without="labels"))

    def _errors(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Squared and absolute errors of each window, and the model's auxiliary loss if it has one."""
        output = self._forecast(model, batch)
        return *errors(output.logits.float(), batch["labels"]), getattr(output, "auxiliary_loss", None)

    def figures(self, sums: torch.Tensor, outputs: list[np.ndarray]) -> dict[str, float]:
        """Errors of the model and, over the same windows, of naive forecasts."""
        squared, absolute, items = sums.tolist()
        mse, mae = squared / max(items, 1), absolute / max(items, 1)
        means = np.concatenate(outputs).mean(axis=0, dtype=np.float64).tolist()
        # Of F means, 2 are of each naive forecast, then 2 for each variable of model and each of them.
        is_seasonal = len(means) == 4 + 6 * len(self.variables)
        forecasts = ("last_value", "seasonal") if is_seasonal else ("last_value",)
        names = [f"{naive}_{error}" for naive in forecasts for error in ERRORS]
        names += [of_variable(name, variable) for name in (*ERRORS, *names) for variable in self.variables]
        return {"loss": mse, "mse": mse, "mae": mae, **dict(zip(names, means, strict=True)), "items": int(items)}


def naive_forecasts(values: torch.Tensor, horizon: int, season: int | None) -> Batch:
    """Forecasts without a model: {last_value: the last step goes on, seasonal: the last `season` steps repeat}.

    The second is left out without a season, or where the input is shorter than one.

    Args:
        values: (B, input_length, C).

    Returns:
        (B, horizon, C) each.
    """
    forecasts = {"last_value": values[:, -1:].expand(-1, horizon, -1)}
    if season is not None and season <= values.shape[1]:
        steps = torch.arange(horizon, device=values.device) % season
        forecasts["seasonal"] = values[:, values.shape[1] - season :][:, steps]
    return forecasts


def errors(forecast: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean squared and mean absolute error of each window, (B, horizon, C) -> (B,)."""
    difference = forecast - labels
    return difference.square().mean((1, 2)), difference.abs().mean((1, 2))


def errors_of_variables(forecast: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean squared and mean absolute error of each window and variable, (B, horizon, C) -> (B, C)."""
    difference = forecast - labels
    return difference.square().mean(1), difference.abs().mean(1)


def _stacked(samples: list[Sample]) -> Batch:
    return {name: torch.from_numpy(np.stack([sample[name] for sample in samples])) for name in samples[0]}


def _sums(squared: torch.Tensor, absolute: torch.Tensor) -> torch.Tensor:
    squared, absolute = squared.detach(), absolute.detach()
    return torch.stack([squared.sum(), absolute.sum(), torch.full_like(squared.sum(), len(squared))])
