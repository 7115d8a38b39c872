"""What keeps FLT from learning: its mask, where the mask starts, or the estimate of attention under it.

    python -m learned.flt_ablation --data FOLDER/data/text [--tokens N] [--rows NAME ...]  # in benchmarks/

FOLDER is that of `benchmarks/learning.py --part recipes`, which prepares the data. Every row is a model of two layers
and width 128 that reads N tokens once, 30 % of them masked, in steps of 8 rows of 128: Muon on the matrices of the
blocks, AdamW on all other parameters, one rate. Appends to benchmarks/results.csv masked accuracy and loss where 15 %
are masked, on the validation rows of that text, and the tokens per second of processor time, and draws the table of
docs/learning.md from that file.
"""

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import record
import tables
import torch
import transformers
from learned.cases import ROOT
from learned.recipe_baselines import BIGRAM, SHOWN
from torch.nn import functional

from longmix.data_prep.files import write_text
from longmix.data_prep.manifest_fields import IGNORED
from longmix.kernels.rotary_heads.portable import rotate
from longmix.modeling.block import buffer_generator
from longmix.modeling.flt import FLTConfig, FLTForMaskedLM
from longmix.modeling.flt.attention import SpectralAttention
from longmix.modeling.flt.spectral_mask import SpectralMask
from longmix.modeling.rotary import make_rotation
from longmix.trainer.objectives.masking import TokenMasker
from longmix.trainer.objectives.neighbour_bigram import NeighbourBigram, most_frequent, positions
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.settings.sections import ObjectiveSection
from longmix.trainer.tables.figures import percent

BENCHMARK, COMMAND = "flt_ablation", "cd benchmarks && python -m learned.flt_ablation --data FOLDER/data/text"
DOCUMENT = ROOT / "docs" / "learning.md"
# Figures and their units.
ACCURACY, LOSS, SPEED = FIGURES = ("masked_accuracy", "loss", "tokens per CPU-second")
UNITS = dict(zip(FIGURES, ("fraction", "nats", "tokens/s"), strict=True))
TOKENS = 500_000  # of the rows of the table
WIDTH, LAYERS, HEADS = 128, 2, 2
BATCH, LENGTH = 8, 128
RATE, WARMUP, DECAY = 3e-3, 0.06, 0.01
TRAIN_MASKED, EVALUATION_MASKED = 0.30, 0.15
SEED = 0  # of weights and order
# Windows as narrow as a token, anywhere: with these fields a mask can be one neighbour.
NARROW = {"spectral_kind": "local", "directional": True, "frequency_sampling": "stratified"}
HEIGHT = 3.0  # of that neighbour at the start, in the exponent
THETA = 10_000.0  # of rotary positions
SHARPER = 4.0  # how much larger queries and keys are at the start, and their products 16 times


class ExactAttention(SpectralAttention):
    """softmax(N^ + Q K^T / sqrt d) V over all pairs, for rows of one document."""

    def attend(self, query, key, value, context):
        """See Attention."""
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        scores = scores + self.mask.matrix(None, query.shape[2]).to(scores.dtype)
        if context.mask is not None:
            scores = scores.masked_fill(~context.mask[:, None, None, :], -torch.inf)
        return scores.softmax(-1) @ value


class MaskAlone(ExactAttention):
    """softmax(N^) V: what the relative positions can do without any content."""

    def attend(self, query, key, value, context):
        """See Attention."""
        return super().attend(torch.zeros_like(query), key, value, context)


class RotaryAttention(SpectralAttention):
    """The estimate, of queries and keys that are turned by their positions before."""

    def attend(self, query, key, value, context):
        """See Attention."""
        positions = torch.arange(query.shape[2], device=query.device)
        rotation = make_rotation(positions, query.shape[-1], THETA, query.dtype)
        return super().attend(rotate(query, *rotation), rotate(key, *rotation), value, context)


class IndependentAttention(SpectralAttention):
    """The estimate from independent projections, where the others have orthogonal blocks."""

    def reset(self):
        """See SpectralAttention."""
        generator = buffer_generator(self.config, self.layer_index, "projection")
        self.feature_projection.copy_(torch.randn(self.feature_projection.shape, generator=generator))


@torch.no_grad()
def put_at_neighbours(model: FLTForMaskedLM, radius: float = 0.5, height: float = HEIGHT) -> None:
    """The first window of each head lies on the left, on the right, 2 to the left, ...; `radius` is half its width."""
    mask: SpectralMask = model.encoder.shared
    for head in range(mask.weight.shape[0]):
        mask.weight[head, 0] = height
        mask.offset[head, 0] = (0.5 + radius + head // 2) * (-1) ** head
        mask.spectrum.log_radius[head, 0] = math.log(radius)


@torch.no_grad()
def sharpen(model: FLTForMaskedLM, factor: float = SHARPER) -> None:
    """Larger queries and keys: random features vary more, and so do the weights that they estimate."""
    for layer in model.encoder.layers:
        weight = layer.mixer.attention.projection.weight
        weight[: 2 * WIDTH] *= factor


@dataclass(frozen=True)
class Row:
    """One model.

    Args:
        label: in the table.
        fields: of FLTConfig.
        attention: what takes the place of its attention.
        begin: changes the model before it is trained.
    """

    label: str
    fields: dict = field(default_factory=dict)
    attention: type[SpectralAttention] = SpectralAttention
    begin: Callable[[FLTForMaskedLM], None] | None = None


ROWS = {
    "estimate": Row("the paper's: 64 features"),
    "estimate-256": Row("256 features", {"num_random_features": 256}),
    "independent": Row("64 features, their projections not orthogonal", attention=IndependentAttention),
    "sharper": Row("64 features, queries and keys 4 times as large at the start", begin=sharpen),
    "smoother": Row(
        "64 features, queries and keys a quarter as large at the start",
        begin=functools.partial(sharpen, factor=1 / SHARPER),
    ),
    "rotary": Row("64 features of queries and keys with rotary positions", attention=RotaryAttention),
    "rotary-1024": Row(
        "1024 features of queries and keys with rotary positions", {"num_random_features": 1024}, RotaryAttention
    ),
    "exact": Row("softmax(N + Q K^T) itself, N starts near zero", {}, ExactAttention),
    "exact-neighbours": Row(
        "softmax(N + Q K^T) itself, N starts at a neighbour", NARROW, ExactAttention, put_at_neighbours
    ),
    "mask-neighbours": Row("softmax(N) itself, N starts at a neighbour", NARROW, MaskAlone, put_at_neighbours),
    "estimate-neighbours": Row("64 features, N starts at a neighbour", NARROW, begin=put_at_neighbours),
    "estimate-wide": Row(
        "64 features, N starts as 8 tokens on one side", NARROW, begin=functools.partial(put_at_neighbours, radius=4.0)
    ),
    "estimate-lower": Row(
        "64 features, N starts at a neighbour, a third as high",
        NARROW,
        begin=functools.partial(put_at_neighbours, height=HEIGHT / 3),
    ),
    "estimate-higher": Row(
        "64 features, N starts at a neighbour, twice as high",
        NARROW,
        begin=functools.partial(put_at_neighbours, height=2 * HEIGHT),
    ),
    "estimate-1024": Row(
        "1024 features, N starts at a neighbour", {**NARROW, "num_random_features": 1024}, begin=put_at_neighbours
    ),
    "exact-reach": Row("64 features, and `exact_reach: 4`", {"exact_reach": 4}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and validation/")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"to train on (default: {TOKENS:,})")
    parser.add_argument("--rows", nargs="*", choices=tuple(ROWS), default=tuple(ROWS), help="(default: all)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    train, validation = (ShardedDataset(arguments.data / split) for split in ("train", "validation"))
    for name, figures in count(train, validation).items():
        _note(name, figures, COMMAND)
    for name in arguments.rows:
        torch.manual_seed(SEED)
        model = make_model(ROWS[name], train.manifest.vocab_size)
        speed = learn(model, train, arguments.tokens, SEED)
        changed = "" if arguments.tokens == TOKENS else f" --rows {name} --tokens {arguments.tokens}"
        figures = {**evaluate(model, validation), SPEED: speed}
        _note(case_of(name, arguments.tokens), figures, f"{COMMAND}{changed}")
    text = DOCUMENT.read_text(encoding="utf-8")
    write_text(DOCUMENT, tables.replace(text, "flt-ablation", table(record.rows(BENCHMARK))))
    return 0


def count(train: ShardedDataset, validation: ShardedDataset) -> dict[str, dict[str, float]]:
    """What a model must pass, at the same positions: name -> masked accuracy, and the bigram's loss."""
    masker = make_masker(train, EVALUATION_MASKED, SEED)
    where = positions(validation, np.arange(len(validation)), masker, is_training=False)
    bigram = NeighbourBigram(train, np.arange(len(train)), masker)
    return {SHOWN: most_frequent(bigram, where)[SHOWN], BIGRAM: bigram.evaluate(where)}


def _note(case: str, figures: dict[str, float], command: str) -> None:
    for figure, value in figures.items():
        record.append(BENCHMARK, case, figure, [value], UNITS[figure], command, threads=1)


def case_of(name: str, tokens: int) -> str:
    return f"{name}; {tokens:,} tokens"


def table(recorded: list[dict[str, str]]) -> str:
    """The newest figures: counting, every row after TOKENS, and what was measured with other numbers of tokens."""
    newest: dict[str, dict[str, dict[str, str]]] = {}
    for row in recorded:
        newest.setdefault(row["case"], {})[row["figure"]] = row
    lengths = {int(case.split("; ")[1].split()[0].replace(",", "")) for case in newest if "; " in case}
    labels = {name: name for name in (SHOWN, BIGRAM)}
    for tokens in (TOKENS, *sorted(lengths - {TOKENS})):
        after = "" if tokens == TOKENS else f", {tokens / 1e6:g} million tokens"
        labels |= {case_of(name, tokens): f"{row.label}{after}" for name, row in ROWS.items()}
    shown, rows = [], []
    for case, label in labels.items():
        found = newest.get(case, {})
        if not found:
            continue
        shown += found.values()
        figures = {figure: float(row["value"]) for figure, row in found.items()}
        loss, speed = (figures.get(figure) for figure in (LOSS, SPEED))
        cells = ["" if loss is None else f"{loss:.2f}", "" if speed is None else f"{speed:,.0f}"]
        rows.append([label, percent(figures[ACCURACY]), *cells])
    header = ["", "masked accuracy, %", "loss", "tokens per CPU-second"]
    return f"{tables.draw(header, rows)}\n\n{tables.measured(shown, f'`{COMMAND}`. ')}"


def make_model(row: Row, vocab_size: int) -> FLTForMaskedLM:
    """The model of a row, at its start."""
    shape = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    model = FLTForMaskedLM(FLTConfig(vocab_size=vocab_size, max_position_embeddings=LENGTH, **shape, **row.fields))
    for layer in model.encoder.layers:
        layer.mixer.attention.__class__ = row.attention
        layer.mixer.attention.reset()
    if row.begin is not None:
        row.begin(model)
    return model


def learn(model: FLTForMaskedLM, data: ShardedDataset, tokens: int, seed: int) -> float:
    """Train on so many tokens, each once; returns tokens per second of processor time."""
    steps = min(tokens // (BATCH * LENGTH), len(data) // BATCH)
    order = np.random.default_rng(seed).permutation(len(data))
    optimizers = make_optimizers(model)
    masker = make_masker(data, TRAIN_MASKED, seed)
    model.train()
    begin = time.process_time()
    for step in range(steps):
        samples = np.sort(order[step * BATCH : (step + 1) * BATCH])
        keys = [masker.training_key(0, 0, sample) for sample in samples.tolist()]
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(**masked_batch(data, samples, masker, keys)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        share = min((step + 1) / (WARMUP * steps), (steps - step) / (steps - WARMUP * steps))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(share, 1.0)
            optimizer.step()
    return steps * BATCH * LENGTH / (time.process_time() - begin)


def make_optimizers(model: FLTForMaskedLM) -> list[torch.optim.Optimizer]:
    """Muon, at the size of AdamW's steps, on the matrices of the blocks; AdamW on the rest, without decay on masks."""
    groups: dict[str, list] = {"matrices": [], "shapes": [], "others": []}
    for name, parameter in model.named_parameters():
        if any(part in name for part in model.no_weight_decay):
            groups["shapes"].append(parameter)
        elif parameter.dim() == 2 and ".layers." in name:
            groups["matrices"].append(parameter)
        else:
            groups["others"].append(parameter)
    others = [{"params": groups["others"]}, {"params": groups["shapes"], "weight_decay": 0.0}]
    muon = {"lr": RATE, "weight_decay": DECAY, "adjust_lr_fn": "match_rms_adamw"}
    return [
        torch.optim.Muon(groups["matrices"], **muon),
        torch.optim.AdamW(others, lr=RATE, betas=(0.9, 0.98), eps=1e-6, weight_decay=DECAY),
    ]


@torch.no_grad()
def evaluate(model: FLTForMaskedLM, data: ShardedDataset) -> dict[str, float]:
    """Masked accuracy and loss at the trainer's positions."""
    masker = make_masker(data, EVALUATION_MASKED, 0)
    model.eval()
    loss = correct = count = 0.0
    for begin in range(0, len(data), BATCH):
        samples = np.arange(begin, min(begin + BATCH, len(data)))
        inputs = masked_batch(data, samples, masker, [masker.evaluation_key(sample) for sample in samples.tolist()])
        labels = inputs.pop("labels")
        chosen = labels != IGNORED
        logits, labels = model(**inputs).logits[chosen], labels[chosen]
        loss += functional.cross_entropy(logits, labels, reduction="sum").item()
        correct += (logits.argmax(-1) == labels).sum().item()
        count += len(labels)
    return {ACCURACY: correct / count, LOSS: loss / count}


def make_masker(data: ShardedDataset, share: float, seed: int) -> TokenMasker:
    """The trainer's."""
    return make_objective(ObjectiveSection(mask_probability=share), seed, data.manifest, None).masker


def masked_batch(data: ShardedDataset, samples: np.ndarray, masker: TokenMasker, keys: list[int]) -> dict:
    """Inputs and labels of the model for some samples, padded to the longest."""
    rows = [masker.mask(sample, key) for sample, key in zip(data.read(samples), keys, strict=True)]
    longest = max(len(row["input_ids"]) for row in rows)
    fills = {"input_ids": 0, "labels": IGNORED}
    batch = {name: torch.full((len(rows), longest), fill) for name, fill in fills.items()}
    batch["attention_mask"] = torch.zeros(len(rows), longest, dtype=torch.bool)
    for place, row in enumerate(rows):
        length = len(row["input_ids"])
        batch["attention_mask"][place, :length] = True
        for name in fills:
            batch[name][place, :length] = torch.as_tensor(row[name])
    return batch


if __name__ == "__main__":
    sys.exit(main())
