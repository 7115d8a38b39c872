"""Answers to texts and to the samples of data sets: classes, values, labels of tokens, filled masks, embeddings."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import transformers

import longmix.modeling
from longmix.data_prep.errors import UserError
from longmix.data_prep.tokenizer import encode_masked

from ..engines.base import to_device
from ..finetune.encode import Encoder, refuse_unknown_ids
from ..finetune.tally import Tally
from ..models.folder import read_inputs
from ..models.loading import load_model
from ..objectives.model_inputs import accepted
from ..samples.collate import Sample, collate, count_positions, length_of
from ..samples.dataset import ShardedDataset
from ..samples.label_scale import DIGITS
from .parts import Answers
from .progress import nobody

# A text, or two.
Texts = tuple[str, str | None]


def rounded(values: Any) -> Any:
    """Numbers in fp32 with the digits that they have; lists of them alike."""
    if isinstance(values, list):
        return [rounded(value) for value in values]
    return float(f"{values:.{DIGITS}g}")


class TextReader:
    """Texts, or pairs of them, as token ids.

    Attributes:
        tally: of what it has read.
    """

    def __init__(self, encoder: Encoder):
        self.encoder, self.pad_token_id = encoder, encoder.tokenizer.pad_token_id
        self.tally = Tally()

    def samples(self, rows: list[Texts]) -> list[Sample]:
        """The token ids of each row."""
        pairs = None if rows[0][1] is None else [second for _, second in rows]
        samples = list(self.encoder.encode([first for first, _ in rows], pairs))
        self.count(samples)
        return samples

    def count(self, samples: list[Sample]) -> None:
        """Samples more, for the tally."""
        for sample in samples:
            self.tally.add(sample["input_ids"], self.encoder.tokenizer, self.encoder.max_length)

    def notes(self) -> list[str]:
        """What is to be told of the rows that it has read."""
        return self.encoder.notes(self.tally, "rows")


class SampleReader:
    """The samples of a prepared data set, by their numbers, without labels."""

    def __init__(self, dataset: ShardedDataset):
        self.dataset, self.pad_token_id = dataset, dataset.manifest.pad_token_id

    def samples(self, rows: list[int]) -> list[Sample]:
        """The inputs of each sample."""
        read = self.dataset.read(np.asarray(rows))
        return [{name: value for name, value in sample.items() if not name.startswith("label")} for sample in read]


class SampleAnswers:
    """The base: samples to batches, the longest first within a part, and answers in the order of the rows.

    Attributes:
        columns: of an answer, with the type of each.
        unit: what an answer is given to, one of them, for the console.
    """

    columns: dict[str, type]
    unit = "row"
    auto_class: type

    def __init__(self, source: str, config: Any, reader: Any, device: torch.device, batch: int):
        self.config, self.reader, self.device, self.batch = config, reader, device, batch
        # A model without a head may lack a pooler, which is not used.
        of_head = config if self.auto_class is transformers.AutoModel else None
        self.model = load_model(source, self.auto_class, of_head).eval().to(device)

    @torch.inference_mode()
    def __call__(self, first: int, rows: list[Any], note: Callable[[int], None] = nobody) -> Answers:
        """The answers to rows of which the first has the number `first`; `note` is told how many more there are."""
        samples = self.samples(first, rows)
        answers: Answers = [{}] * len(rows)
        order = np.argsort([-count_positions(sample) for sample in samples], kind="stable").tolist()
        for start in range(0, len(order), self.batch):
            chosen = order[start : start + self.batch]
            part = [samples[row] for row in chosen]
            inputs = to_device(collate(part, self.reader.pad_token_id), self.device)
            for row, answer in zip(chosen, self.answers(part, inputs), strict=True):
                answers[row] = {"row": first + row, **answer}
            note(len(chosen))
        return answers

    def samples(self, first: int, rows: list[Any]) -> list[Sample]:
        """The model's inputs of each row, the first of which has the number `first`."""
        return self.reader.samples(rows)

    def pass_over(self, rows: list[Any]) -> None:
        """Rows that an earlier command has answered: they are read alone, for what is told of all."""
        if isinstance(self.reader, TextReader):
            self.samples(0, rows)

    def logits(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """The model's logits in fp32, on the CPU."""
        return self.model(**accepted(self.model, inputs)).logits.float().cpu()

    def answers(self, samples: list[dict[str, Any]], inputs: dict[str, torch.Tensor]) -> Iterator[dict[str, Any]]:
        """The answers to a batch, without the numbers of their rows."""
        raise NotImplementedError


class Classes(SampleAnswers):
    """The most probable class by its name, and the probability of each."""

    auto_class = transformers.AutoModelForSequenceClassification

    def __init__(self, source: str, config: Any, *arguments: Any):
        super().__init__(source, config, *arguments)
        self.names = class_names(config)
        self.columns = {"row": int, "label": str, **{probability_of(name): float for name in self.names}}

    def answers(self, samples, inputs):
        for row in self.logits(inputs).softmax(dim=-1):
            yield class_answer(row, self.names)


class PairClasses(Classes):
    """The same of a pair of sequences, each of which is encoded by itself."""

    auto_class = longmix.modeling.AutoModelForSequencePairClassification


class Values(SampleAnswers):
    """The value of a regression, in the unit of its labels."""

    auto_class = transformers.AutoModelForSequenceClassification
    columns = {"row": int, "value": float}  # noqa: RUF012

    def __init__(self, source: str, *arguments: Any):
        super().__init__(source, *arguments)
        self.scale = read_inputs(source).label_scale

    def answers(self, samples, inputs):
        for row in self.logits(inputs):
            value = row[0].item()
            yield {"value": rounded(value) if self.scale is None else self.scale.rounded(self.scale.given(value))}


class TokenLabels(SampleAnswers):
    """The tokens of a text, special ones left out, and the label of each."""

    auto_class = transformers.AutoModelForTokenClassification
    columns = {"row": int, "tokens": list[str], "labels": list[str]}  # noqa: RUF012

    def answers(self, samples, inputs):
        names, special = class_names(self.config), unwritten_ids(self.reader.encoder.tokenizer)
        for sample, row in zip(samples, self.logits(inputs).argmax(dim=-1).tolist(), strict=True):
            kept = [(token, names[label]) for token, label in zip(sample["input_ids"], row, strict=False)]
            kept = [(token, label) for token, label in kept if token not in special]
            tokens = self.reader.encoder.tokenizer.convert_ids_to_tokens([token for token, _ in kept])
            yield {"tokens": tokens, "labels": [label for _, label in kept]}


class PositionLabels(SampleAnswers):
    """The label of each position of a sample whose tokens are no pieces of text."""

    auto_class = transformers.AutoModelForTokenClassification
    columns = {"row": int, "labels": list[str]}  # noqa: RUF012

    def answers(self, samples, inputs):
        names = class_names(self.config)
        for sample, row in zip(samples, self.logits(inputs).argmax(dim=-1).tolist(), strict=True):
            yield {"labels": [names[label] for label in row[: length_of(sample)]]}


class FilledMasks(SampleAnswers):
    """The text with the most probable piece in place of each mask, these pieces, and their probabilities."""

    auto_class = transformers.AutoModelForMaskedLM
    columns = {"row": int, "filled": str, "pieces": list[str], "probabilities": list[float]}  # noqa: RUF012

    def samples(self, first, rows):
        tokenizer = self.reader.encoder.tokenizer
        if tokenizer.mask_token_id is None:
            raise UserError("the model's tokenizer has no mask token, so there is nothing that could be filled in")
        # Called as it is: the encoder of fine-tuning reads [MASK] as letters.
        ids = [encode_masked(tokenizer, text) for text, _ in rows]
        limit = self.reader.encoder.max_length
        for number, tokens in enumerate(ids, start=first):
            refuse_unknown_ids(tokens, tokenizer, self.reader.encoder.vocab_size)
            if len(tokens) > limit and tokenizer.mask_token_id in tokens:
                raise UserError(
                    f"row {number} has a mask and {len(tokens)} tokens, of which at most {limit} are taken: shorten it"
                )
        samples = [{"input_ids": one[:limit]} for one in ids]
        self.reader.count(samples)
        return samples

    def answers(self, samples, inputs):
        tokenizer = self.reader.encoder.tokenizer
        unseen = unwritten_ids(tokenizer)
        for sample, row in zip(samples, self.logits(inputs), strict=True):
            ids = list(sample["input_ids"])
            places = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
            best = row[places].softmax(dim=-1).max(dim=-1)
            filled = dict(zip(places, best.indices.tolist(), strict=True))
            text = [filled.get(place, token) for place, token in enumerate(ids)]
            pieces = [tokenizer.convert_ids_to_tokens(token) or f"(id {token})" for token in filled.values()]
            yield {
                "filled": tokenizer.decode([token for token in text if token not in unseen]),
                "pieces": [piece.replace("▁", "") for piece in pieces],
                "probabilities": rounded(best.values.tolist()),
            }


class Embeddings(SampleAnswers):
    """The mean of the encoder's last hidden states over the valid tokens of a text, the special ones among them."""

    auto_class = transformers.AutoModel
    columns = {"row": int, "embedding": list[float]}  # noqa: RUF012

    def answers(self, samples, inputs):
        hidden = self.model(**accepted(self.model, inputs)).last_hidden_state.float()
        mask = inputs.get("attention_mask", hidden.new_ones(hidden.shape[:2])).unsqueeze(-1).to(hidden.dtype)
        means = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        for row in means.cpu().tolist():
            yield {"embedding": rounded(row)}


def unwritten_ids(tokenizer: transformers.PreTrainedTokenizerBase) -> set[int]:
    """The special tokens that no text holds: all but that of unknown pieces, which stands for some."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def class_names(config: Any) -> list[str]:
    """The names of a model's classes, in their order. Raises UserError where they are numbered otherwise."""
    names = config.id2label
    if set(names) != set(range(len(names))):
        shown = ", ".join(map(str, list(names)[:5]))
        raise UserError(
            f"id2label in the model's config.json numbers its classes {shown}{', ...' if len(names) > 5 else ''}; "
            f"expected 0 to {len(names) - 1}, as they lie in the model's answers: mend it"
        )
    return [str(names[index]) for index in range(len(names))]


def class_answer(probabilities: torch.Tensor, names: Sequence[str]) -> dict[str, Any]:
    """The most probable class and the probabilities (classes,) of all, under the names of their columns."""
    values = rounded(probabilities.tolist())
    shown = {probability_of(name): value for name, value in zip(names, values, strict=True)}
    return {"label": names[int(probabilities.argmax())], **shown}


def probability_of(name: str) -> str:
    """The column of a class's probability."""
    return f"probability_{name}"
