"""Counting in causal language modelling: what a model must pass to have learnt more than which token follows which.

The interpolated bigram predicts a token w from the one before it: P(w) = a P(w) + b P(w | the token before), with
a + b = 1. A token that training has never seen before another one says nothing: there the unigram stands alone. The
weights are fitted by expectation maximisation on training samples that the counts leave out (Jelinek and Mercer, 1980).
Counted and predicted are the tokens that the objective predicts: a document's first token is neither.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from longmix.data_prep.manifest_fields import IGNORED

from ..samples.dataset import ShardedDataset
from ..settings.sections import ObjectiveSection
from .labelled_positions import perplexity, with_word_perplexity
from .objective import make_objective

HELD_OUT = 10  # one training sample of so many fits the weights
ROUNDS = 30
CHUNK = 1024  # tokens before, at a time: what follows them is a dense (CHUNK, vocabulary) array


@dataclass
class Pairs:
    """Predicted tokens, and the one before each; (n,) each."""

    before: np.ndarray
    token: np.ndarray


def pairs(dataset: ShardedDataset, indices: np.ndarray) -> Pairs:
    """What the objective predicts in these samples."""
    objective = make_objective(ObjectiveSection(name="clm"), 0, dataset.manifest, None)
    before, tokens = [], []
    for index, sample in zip(indices.tolist(), dataset.read(indices), strict=True):
        labels = objective.evaluation_batch([sample], np.asarray([index]))["labels"][0].numpy()
        places = np.flatnonzero(labels != IGNORED)
        before.append(np.asarray(sample["input_ids"])[places - 1])
        tokens.append(labels[places])
    return Pairs(np.concatenate(before), np.concatenate(tokens))


class CausalBigram:
    """Unigram and bigram, mixed.

    Args:
        dataset: the training data.
        indices: the samples that the models train on.
    """

    def __init__(self, dataset: ShardedDataset, indices: np.ndarray):
        self.vocab_size = dataset.manifest.vocab_size
        is_held_out = np.arange(len(indices)) % HELD_OUT == 0
        counted, held_out = pairs(dataset, indices[~is_held_out]), pairs(dataset, indices[is_held_out])
        self._count(counted)
        self.weight = self._fitted(held_out)
        self._count(
            Pairs(np.concatenate([counted.before, held_out.before]), np.concatenate([counted.token, held_out.token]))
        )

    def _count(self, found: Pairs) -> None:
        """P(w), and (V, V) of which a row is P(w | the token before), empty for a token that none follows."""
        # One more of each: a token that training never shows has a small probability, not none.
        counts = np.bincount(found.token, minlength=self.vocab_size) + 1
        self.unigram = counts / counts.sum()
        shape = (self.vocab_size, self.vocab_size)
        follows = sparse.csr_matrix((np.ones(len(found.token)), (found.before, found.token)), shape)
        totals = np.asarray(follows.sum(axis=1)).ravel()
        self.is_known = totals > 0
        self.follows = (sparse.diags(1 / np.maximum(totals, 1)) @ follows).tocsr()

    def _fitted(self, held_out: Pairs) -> float:
        """The bigram's share of the mixture."""
        known = self.is_known[held_out.before]
        unigram, bigram = (part[known] for part in self._parts(held_out))
        weight = 0.5
        for _ in range(ROUNDS):
            weight = float(np.mean(weight * bigram / (weight * bigram + (1 - weight) * unigram)))
        return weight

    def _parts(self, where: Pairs) -> tuple[np.ndarray, np.ndarray]:
        """P(w) and P(w | the token before) of the tokens that stand there, (n,) each."""
        return self.unigram[where.token], np.asarray(self.follows[where.before, where.token]).ravel()

    def loss(self, where: Pairs) -> float:
        """Mean negative log-likelihood, nats."""
        unigram, bigram = self._parts(where)
        weight = np.where(self.is_known[where.before], self.weight, 0.0)
        return -float(np.mean(np.log(weight * bigram + (1 - weight) * unigram)))

    def unigram_loss(self, where: Pairs) -> float:
        """The same of the unigram alone."""
        return -float(np.mean(np.log(self.unigram[where.token])))

    def accuracy(self, where: Pairs) -> float:
        """Share of the tokens that are the most probable one."""
        best = np.full(self.vocab_size, int(self.unigram.argmax()))
        given = np.flatnonzero(self.is_known)
        for start in range(0, len(given), CHUNK):
            part = given[start : start + CHUNK]
            mixed = self.weight * self.follows[part].toarray() + (1 - self.weight) * self.unigram
            best[part] = mixed.argmax(axis=1)
        return float((best[where.before] == where.token).mean())


def baselines(train: ShardedDataset, indices: np.ndarray, evaluated: ShardedDataset) -> dict[str, dict[str, float]]:
    """Figures of unigram and bigram on a split, called as the trainer calls a model's.

    Args:
        indices: the training samples that the models read.
    """
    where = pairs(evaluated, np.arange(len(evaluated)))
    bigram = CausalBigram(train, indices)
    unigram = {"loss": bigram.unigram_loss(where), "accuracy": float((where.token == bigram.unigram.argmax()).mean())}
    rows = {"unigram": unigram, "interpolated bigram": {"loss": bigram.loss(where), "accuracy": bigram.accuracy(where)}}
    return {
        name: with_word_perplexity({**row, "token_perplexity": perplexity(row["loss"])}, evaluated.manifest)
        for name, row in rows.items()
    }
