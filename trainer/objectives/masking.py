"""Masking for masked language modelling: a pure function of (seed, source, epoch, sample, position)."""

import math

import numpy as np

from longmix.data_prep.manifest_fields import IGNORED

from ..samples import counter_random
from ..samples.collate import Sample

# Distinguishes the uses of one seed, and training from evaluation.
_TRAIN, _EVALUATION = 11, 12
_CHOSEN, _ACTION, _REPLACEMENT = 0, 1, 2


class TokenMasker:
    """Hides a share of the tokens: of these 80 % become [MASK], 10 % another token, 10 % stay (BERT, section 3.1).

    Args:
        seed: run.seed.
        mask_probability: share of the ordinary tokens (or words) that are predicted.
        mask_token_id: the [MASK] id.
        vocab_size: replacements are drawn from the ordinary ids below it.
        special_token_ids: never hidden, never a replacement.
        starts_word: (vocab_size,) bool, whether a token begins a word; given, whole words are hidden together.
    """

    def __init__(
        self,
        seed: int,
        mask_probability: float,
        mask_token_id: int,
        vocab_size: int,
        special_token_ids: list[int],
        starts_word: np.ndarray | None = None,
    ):
        self.seed, self.mask_probability, self.mask_token_id = seed, mask_probability, mask_token_id
        self.special = np.zeros(vocab_size, dtype=bool)
        self.special[special_token_ids] = True
        self.ordinary = np.flatnonzero(~self.special)
        self.starts_word = starts_word

    def training_key(self, source: np.ndarray | int, epoch: np.ndarray | int, sample: np.ndarray | int) -> np.ndarray:
        """The key of a sample's mask, or of several samples' masks, uint64."""
        return counter_random.key(_TRAIN, self.seed, source, epoch, sample)

    def evaluation_key(self, sample: np.ndarray | int) -> np.ndarray:
        """The same mask in every evaluation of every run: independent of seed and epoch."""
        return counter_random.key(_EVALUATION, sample)

    def mask(self, sample: Sample, key: np.ndarray | int) -> Sample:
        """The sample with hidden tokens in `input_ids` and the true ones in `labels` (-100 elsewhere), both (N,)."""
        return self.mask_all([sample], np.asarray(key, dtype=np.uint64)[None])[0]

    def mask_all(self, samples: list[Sample], keys: np.ndarray) -> list[Sample]:
        """`mask` of each sample with its key, keys (B,) uint64; all at once, for its cost lies in the calls."""
        sequences = [sample["input_ids"] for sample in samples]
        lengths = np.asarray([len(sequence) for sequence in sequences])
        ends = lengths.cumsum()
        starts = ends - lengths
        tokens = np.concatenate(sequences).astype(np.int64)
        ordinary = ~self.special[tokens]
        unit = np.arange(len(tokens)) - np.repeat(starts, lengths)
        if self.starts_word is not None:
            # A special token ends a word: what follows it starts one.
            begins = self.starts_word[tokens] | ~ordinary
            begins[1:] |= ~ordinary[:-1] & (unit[1:] > 0)
            words = np.cumsum(begins)
            unit = words - np.repeat(np.append(0, words)[starts], lengths)
        kinds = counter_random.key(keys[:, None], np.arange(3))
        chosen = counter_random.uniform(np.repeat(kinds[:, _CHOSEN], lengths), unit) < self.mask_probability
        places = np.flatnonzero(ordinary & chosen)
        row = np.searchsorted(ends, places, side="right")
        positions = places - starts[row]
        action = counter_random.uniform(kinds[row, _ACTION], positions)
        replacement = counter_random.uniform(kinds[row, _REPLACEMENT], positions)
        hidden = tokens[places]
        labels = np.full(len(tokens), IGNORED, dtype=np.int64)
        labels[places] = hidden
        random_tokens = self.ordinary[(replacement * len(self.ordinary)).astype(np.int64)]
        tokens[places] = np.where(action < 0.8, self.mask_token_id, np.where(action < 0.9, random_tokens, hidden))
        return [
            {**sample, "input_ids": tokens[start:end], "labels": labels[start:end]}
            for sample, start, end in zip(samples, starts.tolist(), ends.tolist(), strict=True)
        ]

    def mask_without_draw(self, sample: Sample) -> Sample:
        """As `mask`, but always the same: the first ordinary tokens are hidden, as many as on average, at least one."""
        tokens = np.array(sample["input_ids"], dtype=np.int64)
        ordinary = np.flatnonzero(~self.special[tokens])
        positions = ordinary[: math.ceil(self.mask_probability * len(ordinary))]
        labels = np.full(len(tokens), IGNORED, dtype=np.int64)
        labels[positions] = tokens[positions]
        tokens[positions] = self.mask_token_id
        return {**sample, "input_ids": tokens, "labels": labels}


def word_starts(tokenizer) -> np.ndarray:
    """(vocab_size,) bool: whether each token begins a word, from the marks of the common sub-word vocabularies."""
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    continues = [piece is not None and piece.startswith("##") for piece in pieces]
    if any(continues):
        return ~np.asarray(continues)
    return np.asarray([piece is not None and piece.startswith(("▁", "Ġ")) for piece in pieces])
