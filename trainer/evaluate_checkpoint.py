"""`longmix evaluate`: figures of any checkpoint on a data set, and completions of a text."""

import torch
import transformers

import longmix.modeling
from longmix.data_prep.errors import UserError
from longmix.data_prep.tokenizer import load_tokenizer

from . import distributed, export
from .configuration import ObjectiveSection
from .dataset import ShardedDataset
from .evaluation import evaluate
from .objectives import make_objective


def figures(checkpoint: str, data: str, samples: int | None, micro_batch: int) -> str:
    """Loss and accuracy of `checkpoint` on the data set folder `data`, as lines of text.

    Raises:
        UserError: the checkpoint or the data set cannot be read, or they do not belong together.
    """
    dataset = ShardedDataset(data)
    config = _config(checkpoint)
    folder = export.tokenizer_folder(data, dataset.manifest)
    objective = make_objective(
        ObjectiveSection(name=_objective_name(config, dataset)), 0, dataset.manifest, lambda: load_tokenizer(folder)
    )
    if (dataset.manifest.vocab_size or 0) > config.vocab_size:
        raise UserError(
            f"{data} has a vocabulary of {dataset.manifest.vocab_size}, {checkpoint} one of {config.vocab_size}: "
            "prepare the data with the checkpoint's tokenizer (longmix prepare text --tokenizer)"
        )
    world = distributed.join()
    model = _load(objective.auto_class, checkpoint).to(world.device)
    values = evaluate(model, dataset, objective, world, samples, micro_batch)
    return "\n".join(
        f"{name:<16}{value:.4f}" if isinstance(value, float) else f"{name:<16}{value:,}"
        for name, value in values.items()
    )


def fill(checkpoint: str, text: str, top: int) -> str:
    """The `top` most probable pieces for each [MASK] in `text`, with their probabilities, as lines of text."""
    config = _config(checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    inputs = tokenizer(text, return_tensors="pt")
    ids = inputs["input_ids"][0]
    places = (ids == tokenizer.mask_token_id).nonzero().flatten()
    if len(places) == 0:
        raise UserError(f"the text has no {tokenizer.mask_token}: write it where a word is to be filled in")
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and len(ids) > longest:
        raise UserError(f"the text has {len(ids)} tokens, the model takes {longest}: shorten it")
    model = _load(transformers.AutoModelForMaskedLM, checkpoint)
    with torch.no_grad():
        logits = model(input_ids=inputs["input_ids"]).logits[0, places]
    lines = []
    for place, row in zip(places.tolist(), logits.float().softmax(dim=-1), strict=True):
        best = row.topk(min(top, row.numel()))
        for probability, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            filled = ids.clone()
            filled[place] = token
            piece = tokenizer.convert_ids_to_tokens(token).replace("▁", "")
            lines.append(f"{100 * probability:5.1f} %  {piece:<16}{tokenizer.decode(filled, skip_special_tokens=True)}")
    return "\n".join(lines)


def _objective_name(config: transformers.PreTrainedConfig, dataset: ShardedDataset) -> str:
    heads = config.architectures or []
    if any(name.endswith("ForSequenceClassification") for name in heads):
        return "regression" if config.problem_type == "regression" else "classification"
    if any(name.endswith("ForTokenClassification") for name in heads):
        return "token_classification"
    return "mlm"


def _config(checkpoint: str) -> transformers.PreTrainedConfig:
    assert longmix.modeling.MODEL_TYPES
    try:
        return transformers.AutoConfig.from_pretrained(checkpoint)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{checkpoint} is no loadable checkpoint: {str(error).splitlines()[0]}") from None


def _load(auto_class: type, checkpoint: str) -> transformers.PreTrainedModel:
    try:
        model = auto_class.from_pretrained(checkpoint, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{checkpoint} cannot be loaded as {auto_class.__name__}: {str(error).splitlines()[0]}"
        ) from None
    return model.eval()
