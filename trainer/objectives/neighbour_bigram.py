"""Counting in masked language modelling: the baselines that a model must beat to have learnt to mix.

The interpolated bigram predicts a hidden token w from what the model sees at the same masked positions:

    P(w) = a P(w) + b P(w | left neighbour) + c P(w | right neighbour) + d [w is the token shown there]

with a + b + c + d = 1. A neighbour that is itself hidden says nothing: without it, the other parts share its weight.
The weights, a set for each combination of what is known, are fitted by expectation maximisation on training samples
that the counts leave out (Jelinek and Mercer, 1980).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from longmix.data_prep.manifest_fields import IGNORED

from ..samples.dataset import ShardedDataset
from .masking import TokenMasker

HELD_OUT = 10  # one training sample of so many fits the weights
ROUNDS = 30
CHUNK = 1024  # positions at a time: their probabilities are a dense (CHUNK, vocabulary) array
UNIGRAM, LEFT, RIGHT, SHOWN = range(4)


@dataclass
class Positions:
    """Masked positions: the true tokens, and what stands beside and at them, -1 where that is hidden; (n,) each."""

    targets: np.ndarray
    left: np.ndarray
    right: np.ndarray
    shown: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)

    def known(self) -> np.ndarray:
        """(n, 4) bool: which parts of the mixture say something."""
        return np.stack([np.ones(len(self), dtype=bool), self.left >= 0, self.right >= 0, self.shown >= 0], axis=1)


def positions(dataset: ShardedDataset, indices: np.ndarray, masker: TokenMasker, is_training: bool) -> Positions:
    """The positions that the trainer labels in these samples: of the first epoch, or of an evaluation."""
    parts: list[np.ndarray] = []
    for index, sample in zip(indices.tolist(), dataset.read(indices), strict=True):
        key = masker.training_key(0, 0, index) if is_training else masker.evaluation_key(index)
        masked = masker.mask(sample, key)
        seen = np.where(masked["input_ids"] == masker.mask_token_id, -1, masked["input_ids"])
        padded = np.concatenate([[-1], seen, [-1]])
        places = np.flatnonzero(masked["labels"] != IGNORED)
        parts.append(np.stack([masked["labels"][places], padded[places], padded[places + 2], seen[places]]))
    return Positions(*np.concatenate(parts, axis=1))


class NeighbourBigram:
    """Unigram, left and right bigram and the shown token, mixed.

    Args:
        dataset: the training data.
        indices: the samples that the models train on.
        masker: the trainer's, with the share that evaluations hide: the weights are fitted at it.
    """

    def __init__(self, dataset: ShardedDataset, indices: np.ndarray, masker: TokenMasker):
        self.vocab_size = dataset.manifest.vocab_size
        self.ordinary = np.zeros(self.vocab_size, dtype=bool)
        self.ordinary[masker.ordinary] = True
        is_held_out = np.arange(len(indices)) % HELD_OUT == 0
        self._count(dataset, indices[~is_held_out])
        self.weights: dict[tuple[bool, ...], np.ndarray] = {}
        self._fit(positions(dataset, indices[is_held_out], masker, is_training=True))
        self._count(dataset, indices)

    def _count(self, dataset: ShardedDataset, indices: np.ndarray) -> None:
        """P(w), and (V, V) matrices whose rows are P(w | token to the left), P(w | token to the right)."""
        pairs = [sample["input_ids"] for sample in dataset.read(indices)]
        left = np.concatenate([tokens[:-1] for tokens in pairs])
        right = np.concatenate([tokens[1:] for tokens in pairs])
        # One more of each: a token that training never shows has a small probability, not none.
        counts = (np.bincount(np.concatenate(pairs), minlength=self.vocab_size) + 1) * self.ordinary
        self.unigram = counts / counts.sum()
        self.after = self._conditional(left, right)
        self.before = self._conditional(right, left)

    def _conditional(self, given: np.ndarray, token: np.ndarray) -> sparse.csr_matrix:
        kept = self.ordinary[token]
        shape = (self.vocab_size, self.vocab_size)
        counts = sparse.csr_matrix((np.ones(kept.sum()), (given[kept], token[kept])), shape)
        totals = np.asarray(counts.sum(axis=1)).ravel()
        return sparse.diags(1 / np.maximum(totals, 1)) @ counts

    def _parts(self, chunk: Positions) -> np.ndarray:
        """(4, n, V): the distribution that each part of the mixture gives, zero where it says nothing."""
        parts = np.zeros((4, len(chunk), self.vocab_size), dtype=np.float32)
        parts[UNIGRAM] = self.unigram
        for part, matrix, given in ((LEFT, self.after, chunk.left), (RIGHT, self.before, chunk.right)):
            rows = np.flatnonzero(given >= 0)
            parts[part, rows] = matrix[given[rows]].toarray()
        rows = np.flatnonzero(chunk.shown >= 0)
        parts[SHOWN, rows, chunk.shown[rows]] = 1
        return parts

    def _of_targets(self, where: Positions) -> np.ndarray:
        """(n, 4): the probability that each part of the mixture gives the true token, zero where it says nothing."""
        given = np.zeros((len(where), 4))
        given[:, UNIGRAM] = self.unigram[where.targets]
        for part, matrix, beside in ((LEFT, self.after, where.left), (RIGHT, self.before, where.right)):
            rows = np.flatnonzero(beside >= 0)
            given[rows, part] = np.asarray(matrix[beside[rows], where.targets[rows]]).ravel()
        given[:, SHOWN] = where.shown == where.targets
        return given

    def _fit(self, held_out: Positions) -> None:
        known, given = held_out.known(), self._of_targets(held_out)
        for case in np.unique(known, axis=0):
            likelihood = given[(known == case).all(axis=1)]
            weights = case / case.sum()
            for _ in range(ROUNDS):
                shares = likelihood * weights
                shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(float).tiny)
                weights = shares.sum(axis=0) / np.maximum(shares.sum(), 1)
            self.weights[tuple(case.tolist())] = weights

    def loss(self, where: Positions) -> float:
        """Mean negative log-likelihood, nats: that of `evaluate`, in a fraction of its time."""
        weights = np.stack([self._weights_of(case) for case in map(tuple, where.known().tolist())])
        return -float(np.log((self._of_targets(where) * weights).sum(axis=1)).mean())

    def unigram_loss(self, where: Positions) -> float:
        """The same of the unigram alone."""
        return -float(np.log(self.unigram[where.targets]).mean())

    def evaluate(self, where: Positions) -> dict[str, float]:
        """`masked_accuracy` and `loss` (nats) at these positions, as the trainer's figures are called."""
        hits, loss = 0, 0.0
        for chunk in _chunks(where):
            weights = np.stack([self._weights_of(case) for case in map(tuple, chunk.known().tolist())])
            mixed = np.einsum("pnv,np->nv", self._parts(chunk), weights)
            hits += int((mixed.argmax(axis=1) == chunk.targets).sum())
            loss -= float(np.log(mixed[np.arange(len(chunk)), chunk.targets]).sum())
        return {"masked_accuracy": hits / len(where), "loss": loss / len(where)}

    def _weights_of(self, case: tuple[bool, ...]) -> np.ndarray:
        """The fitted weights, or equal ones for a combination that the held-out samples do not have."""
        return self.weights.get(case, np.asarray(case) / sum(case))


def most_frequent(model: NeighbourBigram, where: Positions) -> dict[str, dict[str, float]]:
    """Accuracy of the most frequent token, and of the token that is shown there if one is, else the most frequent."""
    favourite = int(model.unigram.argmax())
    shown = np.where(where.shown >= 0, where.shown, favourite)
    return {
        "most frequent token": {"masked_accuracy": float((where.targets == favourite).mean())},
        "token shown there, or the most frequent": {"masked_accuracy": float((where.targets == shown).mean())},
    }


def _chunks(where: Positions) -> Iterator[Positions]:
    for start in range(0, len(where), CHUNK):
        part = slice(start, start + CHUNK)
        yield Positions(where.targets[part], where.left[part], where.right[part], where.shown[part])
