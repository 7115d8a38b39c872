"""Position embeddings of a model, and the tokens that it takes: not all types of transformers number them from 0."""

from typing import Any

# Types of transformers that number the first token's position pad_token_id + 1, as RoBERTa does.
POSITIONS_AFTER_PADDING = (
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "layoutlmv3",
    "lilt",
    "longformer",
    "luke",
    "markuplm",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)


def first_position(model_type: str, pad_token_id: int | None) -> int:
    """The position of a sample's first token."""
    # Numbers begin after the padding's own, which MPNet fixes at 1.
    return max(pad_token_id or 0, 1) + 1 if model_type in POSITIONS_AFTER_PADDING else 0


def longest_input(config: Any) -> int | None:
    """The tokens of the longest sample that a model takes; None where nothing bounds them."""
    positions = getattr(config, "max_position_embeddings", None) or 0
    if positions < 1:  # XLNet says -1
        return None
    return positions - first_position(config.model_type, getattr(config, "pad_token_id", None))
