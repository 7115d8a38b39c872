"""The checkpoint's guesses at words that are hidden in sentences which it has never seen.

Hidden is one of the most frequent words of the training text in each sentence: of these a small model learns most, and
a reader sees at once which guesses are sensible. No figure of the model decides which sentences are taken, which word
of each, and which are shown; the share that is guessed right is of all of them.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from longmix.data_prep.errors import printable
from longmix.data_prep.files import make_folder, write_text
from longmix.data_prep.tokenizer import call, load_tokenizer

from ..run.evaluation import chosen_samples
from ..samples.dataset import ShardedDataset
from ..tables.figures import percent
from ..tables.writing import aligned
from .commands import longmix
from .plan import Plan

_FREQUENT = 30  # words
_READ = 500  # samples, of each split
_MOST = 200  # sentences
_SHOWN = 8
_CONTEXT = 6  # words shown on each side
# What follows a mark of a sentence's end, and ends with one.
_SENTENCE = re.compile(r"(?<=[.!?] )\S[^.!?]{40,160}[.!?](?= )")


@dataclass(frozen=True)
class Masked:
    """A sentence of which the word at `place` is to be guessed."""

    words: list[str]
    place: int

    def with_word(self, word: str) -> str:
        """The sentence with another word there."""
        return " ".join([*self.words[: self.place], word, *self.words[self.place + 1 :]])

    def around(self, word: str) -> str:
        """A few words on either side of that place."""
        first, last = max(0, self.place - _CONTEXT), self.place + 1 + _CONTEXT
        part = [*self.words[first : self.place], word, *self.words[self.place + 1 : last]]
        return " ".join(["..."] * (first > 0) + part + ["..."] * (last < len(self.words)))


def guess(plan: Plan) -> None:
    """Load the checkpoint back, let it guess, and show what it says beside what stands there."""
    data, folder = plan.output / "data", plan.output / "masked"
    validation = ShardedDataset(str(data / "validation"))
    tokenizer = load_tokenizer(data / "validation" / validation.manifest.tokenizer["path"])
    frequent = frequent_words(_texts(ShardedDataset(str(data / "train")), tokenizer), tokenizer)
    found = masked_sentences(_texts(validation, tokenizer), frequent)
    make_folder(folder)
    sentences, answers = folder / "sentences.txt", folder / "guesses.jsonl"
    write_text(sentences, "".join(f"{one.with_word(tokenizer.mask_token)}\n" for one in found))
    longmix("predict", plan.output / "pretrain" / "model", "--data", sentences, "--output", answers)
    print("\n".join(map(printable, table(found, answers, tokenizer))))


def frequent_words(texts: Iterator[str], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The most frequent words without capitals, of those that are one piece of the vocabulary."""
    counts = Counter(word for text in texts for word in text.split() if word.isalpha() and word == word.lower())
    words = (word for word, _ in counts.most_common(10 * _FREQUENT) if len(tokenizer.tokenize(word)) == 1)
    return [word for word, _ in zip(words, range(_FREQUENT), strict=False)]


def masked_sentences(texts: Iterator[str], frequent: list[str]) -> list[Masked]:
    """Sentences spread over the texts, with a frequent word in each; where there are none, the texts' beginnings.

    Of several frequent words in a sentence its hash draws one.
    """
    found: dict[str, Masked] = {}
    beginnings = []
    for text in texts:
        beginnings.append(text.split()[:20] or [text])
        for sentence in _SENTENCE.findall(text):
            words = sentence.split()
            places = [place for place in range(1, len(words) - 1) if words[place] in frequent]
            if places:
                drawn = int.from_bytes(hashlib.sha256(sentence.encode()).digest()[:8], "big")
                found[sentence] = Masked(words, places[drawn % len(places)])
    masked = list(found.values()) or [Masked(words, len(words) // 2) for words in beginnings]
    return [masked[index] for index in chosen_samples(len(masked), _MOST)]


def table(found: list[Masked], answers: Path, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Some of the guesses beside what stands there, and the share of all that is right."""
    guesses = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    hits = [
        answer["filled"] == _as_read(one.with_word(one.words[one.place]), tokenizer)
        for one, answer in zip(found, guesses, strict=True)
    ]
    hidden = Counter(one.words[one.place] for one in found)
    favourite, count = hidden.most_common(1)[0]
    rows = [
        (
            found[index].words[found[index].place],
            guesses[index]["pieces"][0],
            f"{percent(guesses[index]['probabilities'][0], digits=0)} %",
            found[index].around(tokenizer.mask_token),
        )
        for index in chosen_samples(len(found), _SHOWN)
    ]
    return [
        f"One of the {_FREQUENT} most frequent words is hidden in each of {len(found)} held-out sentences; of these:",
        "",
        *(f"  {line}" for line in aligned(("hidden", "guess", "sure", "where"), rows, right=(2,))),
        "",
        f"Guessed right: {percent(sum(hits) / len(found))} % of {len(found)}; always {favourite!r}: "
        f"{percent(count / len(found))} %.",
    ]


def _as_read(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """A text as it comes back from its tokens."""
    return tokenizer.decode(call(tokenizer, text, verbose=False)["input_ids"], skip_special_tokens=True)


def _texts(dataset: ShardedDataset, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    for index in chosen_samples(len(dataset), _READ):
        sample = dataset.read(np.asarray([index]))[0]
        yield tokenizer.decode(sample["input_ids"].tolist(), skip_special_tokens=True)
