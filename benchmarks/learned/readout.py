"""How much of what a classifier reads depends on the text: the answers that encoders give to the texts of a file.

    python benchmarks/learned/readout.py MODEL [MODEL ...] --texts FILE.tsv [--column text] [--samples 256]

Two readouts of each model: the last layer at the first position, and its mean over the valid tokens. Of the vectors of
the texts it prints the share of their square that all texts have in common (that of their mean), and how many
directions the rest takes: the participation ratio of its spectrum. A share near 1 leaves a new head next to nothing to
tell texts apart by.
"""

import argparse
import csv
from pathlib import Path

import torch
import transformers

import longmix.modeling  # noqa: F401  registers the model types
from longmix.trainer.tables.writing import aligned

LENGTH = 128  # tokens of a text: as many as fine-tuning reads of it by default
BATCH = 32
READOUTS = ("first", "mean")


@torch.no_grad()
def vectors(folder: str, texts: list[str]) -> dict[str, torch.Tensor]:
    """readout -> (texts, D), float64."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    length = min(LENGTH, tokenizer.model_max_length)
    read: dict[str, list[torch.Tensor]] = {name: [] for name in READOUTS}
    for begin in range(0, len(texts), BATCH):
        some = texts[begin : begin + BATCH]
        batch = tokenizer(some, truncation=True, max_length=length, padding=True, return_tensors="pt")
        hidden = model(**batch).last_hidden_state.double()
        mask = batch["attention_mask"].unsqueeze(-1)
        read["first"].append(hidden[:, 0])
        read["mean"].append((hidden * mask).sum(1) / mask.sum(1))
    return {name: torch.cat(parts) for name, parts in read.items()}


def common_share(vectors: torch.Tensor) -> float:
    """Of the mean square of (texts, D), the part that their mean has."""
    return float(vectors.mean(0).square().sum() / vectors.square().sum(1).mean())


def directions(vectors: torch.Tensor) -> float:
    """The participation ratio of what (texts, D) are apart from their mean: k where k directions have equal parts."""
    squares = torch.linalg.svdvals(vectors - vectors.mean(0)).square()
    return float(squares.sum().square() / squares.square().sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="model folders, e.g. RUN/model")
    parser.add_argument("--texts", type=Path, required=True, help="a .tsv file with a header")
    parser.add_argument("--column", default="text", help="its column (default: text)")
    parser.add_argument("--samples", type=int, default=256, help="texts from its beginning (default: 256)")
    arguments = parser.parse_args()
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    try:
        with arguments.texts.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            if arguments.column not in (rows.fieldnames or ()):
                raise ValueError(f"{arguments.texts} has no column {arguments.column!r}")
            texts = [row[arguments.column] for row, _ in zip(rows, range(arguments.samples), strict=False)]
        if len(texts) < 2:
            raise ValueError(f"{arguments.texts} holds {len(texts)} texts; two at least can be told apart")
        lines = []
        for folder in arguments.models:
            for name, read in vectors(folder, texts).items():
                lines.append([folder, name, f"{100 * common_share(read):.2f}", f"{directions(read):.1f}"])
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print("\n".join(aligned(["model", "readout", "in common, %", "directions"], lines, right=(2, 3))))


if __name__ == "__main__":
    main()
