"""The mixing matrices of a trained model, drawn: the share of each token in each other one of a sample.

    python benchmarks/mixing_matrix.py MODEL --data DATASET [--sample 0] --output FOLDER

Writes FOLDER/layer-0.png and so on, the heads of a layer side by side, row i what token i gets (black: nothing; white:
the matrix's largest entry), and prints how large the entries at each distance are. For the mixers that are linear in
their values: transformer, flt, paramixer, converter (the modulus of its complex entries).
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image  # tensorboard needs it, too

from longmix.modeling import load_pretrained
from longmix.trainer.samples.collate import collate
from longmix.trainer.samples.dataset import ShardedDataset

GAP = 2  # pixels between heads
WIDTH = 256  # of a head, at least


@torch.no_grad()
def mixing_matrices(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The (B, H, N, N) matrix of every layer for what reaches it when the model reads `batch`.

    Raises:
        ValueError: a mixer that is not linear in its values has no such matrix.
    """
    found: list[torch.Tensor] = []

    def look(mixer: torch.nn.Module, arguments: tuple) -> None:
        matrix = mixer.mixing_matrix(*arguments)
        found.append(matrix.norm(dim=-1) if matrix.dim() == 5 else matrix.abs())

    layers = model.base_model.layers
    if not hasattr(layers[0].mixer, "mixing_matrix"):
        raise ValueError(f"{model.config.model_type} has no mixing matrix: it is not linear in its values")
    hooks = [layer.mixer.register_forward_pre_hook(look) for layer in layers]
    try:
        model.eval()(**batch)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def draw(matrix: torch.Tensor) -> Image.Image:
    """Heads (H, N, N) side by side, as one grey picture."""
    heads = (255 * matrix / matrix.amax().clamp(min=1e-30)).round().byte().numpy()
    size = max(1, -(-WIDTH // heads.shape[-1]))
    heads = [np.kron(head, np.ones((size, size), dtype=np.uint8)) for head in heads]
    gap = np.full((len(heads[0]), GAP), 128, dtype=np.uint8)
    parts = [part for head in heads for part in (head, gap)]
    return Image.fromarray(np.concatenate(parts[:-1], axis=1))


def by_distance(matrix: torch.Tensor) -> dict[int, float]:
    """Root mean square entry of (H, N, N) at distances 0, 1, 2, 4, ..., both sides together."""
    positions = torch.arange(matrix.shape[-1])
    distance = (positions[:, None] - positions).abs()
    wanted = [0, *(2**power for power in range(len(positions).bit_length()) if 2**power < len(positions))]
    return {number: float(matrix[:, distance == number].square().mean().sqrt()) for number in wanted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a model folder, e.g. RUN/model")
    parser.add_argument("--data", required=True, help="a prepared data set that the model can read")
    parser.add_argument("--sample", type=int, default=0, help="number of the sample (default: 0)")
    parser.add_argument("--output", type=Path, required=True, help="folder for the pictures")
    arguments = parser.parse_args()
    transformers.logging.disable_progress_bar()
    try:
        dataset = ShardedDataset(arguments.data)
        batch = collate(dataset.read(np.array([arguments.sample])), dataset.manifest.pad_token_id)
        batch.pop("labels", None)
        matrices = mixing_matrices(load_pretrained(arguments.model), batch)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    arguments.output.mkdir(parents=True, exist_ok=True)
    for layer, matrix in enumerate(matrices):
        draw(matrix[0]).save(arguments.output / f"layer-{layer}.png")
        curve = by_distance(matrix[0])
        if layer == 0:
            print("distance " + "".join(f"{distance:>9}" for distance in curve))
        print(f"layer {layer:<3}" + "".join(f"{value:>9.1e}" for value in curve.values()))


if __name__ == "__main__":
    main()
