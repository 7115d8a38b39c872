"""What counting reaches where language models are compared: the lines that a model must pass to have learnt to mix.

Unigram and interpolated bigram are counted on the runs' training data, and read at the tokens that the runs'
evaluations predict: of the same samples, and with the same ones hidden.
"""

import json
import math
from dataclasses import dataclass

from longmix.data_prep.errors import UserError

from ..many_runs.read import Run
from ..settings.mistakes import say_loading
from .data import find_data
from .settings import Setting
from .summary import Report

# Of more training tokens, samples with so many are counted, spread over the data set.
MOST_TOKENS = 4_000_000


@dataclass(frozen=True)
class Counted:
    """Mean losses in nats.

    Attributes:
        tokens: training tokens that were counted.
        letters: of the rows whose data and evaluations these are, as `Row.letter`.
    """

    unigram: float
    bigram: float
    tokens: int
    letters: tuple[str, ...]

    @property
    def said(self) -> str:
        """A sentence for the tables."""
        of = f" (rows {', '.join(self.letters)})" if any(self.letters) else ""
        unigram, bigram = math.exp(self.unigram), math.exp(self.bigram)
        return (
            f"Counting {self.tokens:,} training tokens reaches a validation loss of {self.unigram:.4g} by unigrams and "
            f"of {self.bigram:.4g} by interpolated bigrams{of}, as perplexity per token {unigram:.4g} and {bigram:.4g}."
        )


def count(report: Report) -> dict[Setting, list[Counted]]:
    """What counting reaches in each setting of language models whose data are at hand, for each of their data sets."""
    found: dict[Setting, list[Counted]] = {}
    for setting, rows in report.settings.items():
        if setting.objective is None:
            continue
        alike: dict[str, list] = {}
        for row in rows:
            alike.setdefault(_basis(row.runs[0]), []).append(row)
        for group in alike.values():
            losses = counted_losses(group[0].runs[0])
            if losses is not None:
                letters = tuple(dict.fromkeys(row.letter for row in group)) if len(alike) > 1 else ()
                found.setdefault(setting, []).append(Counted(*losses, letters))
    return found


def _basis(run: Run) -> str:
    """All that the losses depend on."""
    fingerprints = run.fingerprints if isinstance(run.fingerprints, dict) else {}
    data = [[run.value(key), fingerprints.get(key)] for key in ("data.train", "data.eval")]
    hidden = [run.evaluation_mask_probability, run.value("objective.whole_word", False)]
    return json.dumps([data, run.value("eval.samples"), hidden], sort_keys=True, default=str)


def counted_losses(run: Run) -> tuple[float, float, int] | None:
    """Loss of the unigram and of the bigram at what a run's evaluations predict, and the tokens that were counted.

    None where the data are not at hand.
    """
    try:
        (train, of_train), (evaluated, _) = find_data(run, "data.train"), find_data(run, "data.eval")
        # They bring torch, which a report without language models need not wait for.
        say_loading("report")
        from ..objectives.causal_bigram import CausalBigram, pairs
        from ..objectives.neighbour_bigram import NeighbourBigram, positions
        from ..objectives.objective import make_objective
        from ..run.evaluation import chosen_samples
        from ..run.setup import tokenizer_loader
        from ..samples.dataset import ShardedDataset
        from ..samples.tokenizer import tokenizer_folder
        from ..settings.sections import ObjectiveSection

        training, evaluation = ShardedDataset(str(train)), ShardedDataset(str(evaluated))
        if not of_train.tokens:
            return None
        rows = chosen_samples(len(training), max(1, len(training) * MOST_TOKENS // of_train.tokens))
        reported = chosen_samples(len(evaluation), run.value("eval.samples"))
        section = ObjectiveSection(name=run.objective, whole_word=run.value("objective.whole_word", False))
        loader = tokenizer_loader(tokenizer_folder(str(train), of_train))
        share = run.evaluation_mask_probability
        objective = make_objective(section, run.seed, of_train, loader, share)
        if share is None:
            where, bigram = pairs(evaluation, reported), CausalBigram(training, rows)
        else:
            masker = objective.evaluation_masker
            where = positions(evaluation, reported, masker, is_training=False)
            bigram = NeighbourBigram(training, rows, masker)
        tokens = sum(len(sample["input_ids"]) for sample in training.read(rows))
    except (UserError, OSError, ValueError, KeyError):
        return None
    return bigram.unigram_loss(where), bigram.loss(where), tokens
