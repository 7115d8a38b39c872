"""Standardised labels of a regression: a model learns numbers around 0 in few steps, and those of most units never."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TypeVar

import numpy as np

from longmix.data_prep.manifest import Manifest

DIGITS = 7  # of a value in fp32
_KEY = "label_scale"
Number = TypeVar("Number", float, np.ndarray)


@dataclass(frozen=True)
class LabelScale:
    """What labels are standardised by.

    Attributes:
        mean, deviation: of the labels that are trained on.
    """

    mean: float
    deviation: float

    @classmethod
    def of(cls, labels: Sequence[float]) -> "LabelScale":
        """That of some labels; equal ones keep their unit."""
        if min(labels) == max(labels):
            return cls(float(labels[0]), 1.0)
        return cls(float(np.mean(labels)), float(np.std(labels)))

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> "LabelScale | None":
        """That of a data set's labels; None: they are as they were given, as far as its report says."""
        values = manifest.report.get(_KEY)
        if not isinstance(values, dict) or set(values) != {field.name for field in fields(cls)}:
            return None
        return cls(**values) if all(isinstance(value, float) for value in values.values()) else None

    def report(self) -> dict[str, dict[str, float]]:
        """For the report of a manifest."""
        return {_KEY: asdict(self)}

    def standardised(self, label: float) -> float:
        """A label as models learn it."""
        return (label - self.mean) / self.deviation

    def rounded(self, value: float) -> float:
        """A value in the unit of the labels with the digits of what tells them apart, however far from 0 they are."""
        return round(value, DIGITS - 1 - math.floor(math.log10(self.deviation)))

    def given(self, value: Number) -> Number:
        """What a model says, in the unit of the labels."""
        return value * self.deviation + self.mean
