"""The influence of a token on the answer of another, against the distance between them.

The influence of token j on position i is the norm of the gradient, with respect to the embedding of j, of the logits of
i in a random direction. It asks nothing of a mixer but that it can be differentiated, so it compares all of them.
"""

import numpy as np
import torch
import transformers

SAMPLES = 32
ROUNDS = 4  # positions looked at in each sample


def by_distance(model: transformers.PreTrainedModel, distances: list[int], length: int) -> dict[int, float]:
    """Root mean square influence over both sides at each distance, relative to that of the position on itself.

    Args:
        model: classifies tokens; random tokens of `length` positions are what it reads.
        distances: smaller than `length`.

    Returns:
        {distance: relative influence}, for the distances and 0, which is 1 by definition.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, model.config.vocab_size, (SAMPLES, length), generator=generator)
    squares = np.zeros(length)
    counts = np.zeros(length)
    for _ in range(ROUNDS):
        places = torch.randint(length, (SAMPLES,), generator=generator)
        influence = squared_influence(model, {"input_ids": tokens}, places, generator)
        for row, place in zip(influence, places.tolist(), strict=True):
            distance = np.abs(np.arange(length) - place)
            np.add.at(squares, distance, row)
            np.add.at(counts, distance, 1)
    mean = squares / np.maximum(counts, 1)
    return {distance: float(np.sqrt(mean[distance] / mean[0])) for distance in (0, *distances)}


def squared_influence(
    model: transformers.PreTrainedModel,
    inputs: dict[str, torch.Tensor],
    places: torch.Tensor,
    generator: torch.Generator,
) -> np.ndarray:
    """Squared influence of every token on position `places[b]` (B,) of its sample: (B, N)."""
    model.eval()
    inputs = dict(inputs)
    embedded = model.get_input_embeddings()(inputs.pop("input_ids")).detach().requires_grad_(True)
    logits = model(inputs_embeds=embedded, **inputs).logits
    rows = torch.arange(len(places))
    direction = torch.randn(len(places), logits.shape[-1], generator=generator)
    (gradient,) = torch.autograd.grad((logits[rows, places] * direction).sum(), embedded)
    return gradient.square().sum(-1).double().numpy()
