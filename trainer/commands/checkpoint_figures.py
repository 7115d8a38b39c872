"""Figures of any checkpoint on a data set, and completions of a text: the work of `longmix evaluate`."""

import tempfile
from pathlib import Path

import torch
import transformers

from longmix.data_prep.errors import UserError
from longmix.data_prep.tokenizer import encode_masked

from ..checkpoints.model_folders import model_folder, told_model_folder
from ..finetune.encode import refuse_unknown_ids
from ..finetune.records import Table
from ..models.build import refuse_other_inputs
from ..models.folder import objective_of, read_inputs
from ..models.loading import has_other_vocabulary, load_checkpoint_tokenizer, load_config, load_model
from ..models.meaning import refuse_other_labels, refuse_other_numbering
from ..models.positions import longest_input
from ..objectives.forecasting import Forecasting
from ..objectives.objective import make_objective
from ..prediction.progress import Progress, nobody
from ..prediction.series_split import write_split
from ..prediction.series_tables import series_of
from ..prediction.texts import unwritten_ids
from ..processes import world as distributed
from ..run.evaluation import chosen_samples, evaluate
from ..run.setup import tokenizer_loader
from ..samples.dataset import ShardedDataset
from ..samples.tokenizer import tokenizer_folder
from ..samples.windows import Dataset, as_seen, unfitting_kind
from ..settings import forecast_figures
from ..settings.objectives import FORECASTING, OBJECTIVES
from ..settings.sections import EVALUATION_MASK_PROBABILITY
from ..tables.writing import aligned


def figures(checkpoint: str, data: str, samples: int | None, micro_batch: int) -> str:
    """Figures of the objective that `checkpoint` was trained with on the data set folder `data`, as lines of text.

    Masks hide EVALUATION_MASK_PROBABILITY of the tokens, whatever training hid, and a line says so.

    Raises:
        UserError: the checkpoint or the data set cannot be read, or they do not belong together.
    """
    checkpoint = told_model_folder(checkpoint)
    config = load_config(checkpoint)
    dataset = ShardedDataset(data)
    section = objective_of(checkpoint, config)
    kind = unfitting_kind(dataset.manifest, section)
    if kind is not None:
        raise UserError(
            f"{data} holds {kind}, but {checkpoint} was trained for {section.name}: name data of the kind it was "
            "trained on"
        )
    folder = tokenizer_folder(data, dataset.manifest)
    _check_vocabulary(checkpoint, config, data, dataset, folder)
    if not OBJECTIVES[section.name].is_language_model and (dataset.manifest.num_labels or 0) > config.num_labels:
        raise UserError(
            f"{data} has {dataset.manifest.num_labels} labels, {checkpoint} only {config.num_labels}: "
            "it was trained for another task"
        )
    dataset = as_seen(dataset, section)
    _check_variables(checkpoint, config, data, dataset)
    refuse_other_labels(checkpoint, config, data, dataset.manifest)
    refuse_other_numbering(checkpoint, data, dataset.manifest)
    objective = make_objective(section, 0, dataset.manifest, tokenizer_loader(folder))
    if isinstance(objective, Forecasting):
        objective.variables = dataset.manifest.series["names"]  # also of many: this is one table, and no log
    try:
        refuse_other_inputs(config, dataset.manifest, is_trained=True)
    except UserError as error:
        raise UserError(f"{checkpoint} does not fit {data}: {error}") from None
    world = distributed.join()
    model = load_model(checkpoint, objective.auto_class).to(world.device)
    progress = Progress(len(chosen_samples(len(dataset), samples)), "sample", "evaluate")
    note = progress.note if world.is_first else nobody
    values = evaluate(model, dataset, objective, world, samples, micro_batch, note=note)
    if values["items"] == 0:
        raise UserError(
            f"the evaluated samples of {data} hold nothing to predict, so there are no figures: raise --samples, or "
            "name another data set"
        )
    if OBJECTIVES[section.name].hides_tokens:
        values["mask_probability"] = EVALUATION_MASK_PROBABILITY
    lines = [
        f"{name:<18}{value:.4f}" if isinstance(value, float) else f"{name:<18}{value:,}"
        for name, value in values.items()
        if forecast_figures.variable_of(name) is None
    ]
    if forecast_figures.is_forecast(values):
        header, rows = forecast_figures.table(values)
        lines += ["", *aligned(header, rows, right=range(1, len(header)))]
        lines += [lost] if (lost := forecast_figures.verdict(values)) is not None else []
    return "\n".join(lines)


def forecasts(checkpoint: str) -> bool:
    """Whether a checkpoint's objective is forecasting."""
    source = model_folder(checkpoint)
    return objective_of(source, load_config(source)).name == FORECASTING


def figures_of_series(
    checkpoint: str, table: Table, reaches_over_gaps: bool, samples: int | None, micro_batch: int
) -> str:
    """The same figures of a checkpoint that forecasts on the windows of a table, whose rows may be later ones.

    Windows hold places where rows are missing or repeated only with `reaches_over_gaps`.

    Raises:
        UserError: they do not belong together, or the table is too short or cannot be read.
    """
    source = model_folder(checkpoint)
    section, series = objective_of(source, load_config(source)), series_of(read_inputs(source), checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        split = Path(folder) / "test"
        write_split(table, series, section, reaches_over_gaps, split)
        return figures(checkpoint, str(split), samples, micro_batch)


def fill(checkpoint: str, text: str, top: int) -> str:
    """The `top` most probable pieces for each [MASK] in `text`, with their probabilities, as lines of text."""
    checkpoint = told_model_folder(checkpoint)
    config = load_config(checkpoint)
    heads = config.architectures or []
    if heads and not any(head.endswith(("ForMaskedLM", "ForPreTraining")) for head in heads):
        raise UserError(f"{checkpoint} is a {' or '.join(heads)}, and --fill asks models of objective mlm alone")
    tokenizer = load_checkpoint_tokenizer(checkpoint)
    if tokenizer.mask_token_id is None:
        raise UserError(f"the tokenizer of {checkpoint} has no mask token, so there is nothing that could be filled in")
    ids = torch.tensor(encode_masked(tokenizer, text))
    places = (ids == tokenizer.mask_token_id).nonzero().flatten()
    if len(places) == 0:
        raise UserError(f"the text has no {tokenizer.mask_token}: write it where a word is to be filled in")
    longest = longest_input(config)
    if longest is not None and len(ids) > longest:
        raise UserError(f"the text has {len(ids)} tokens, the model takes {longest}: shorten it")
    refuse_unknown_ids(ids.tolist(), tokenizer, config.vocab_size)
    model = load_model(checkpoint, transformers.AutoModelForMaskedLM).eval()
    unseen = unwritten_ids(tokenizer) - {tokenizer.mask_token_id}
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0, places]
    lines = []
    for place, row in zip(places.tolist(), logits.float().softmax(dim=-1), strict=True):
        best = row.topk(min(top, row.numel()))
        for probability, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            filled = ids.clone()
            filled[place] = token
            # A model may have more ids than its tokenizer has pieces.
            piece = (tokenizer.convert_ids_to_tokens(token) or f"(id {token})").replace("▁", "")
            whole = tokenizer.decode([number for number in filled.tolist() if number not in unseen])
            whole = " ".join(whole.replace(tokenizer.mask_token, f" {tokenizer.mask_token} ").split())
            lines.append(f"{100 * probability:5.1f} %  {piece:<16}{whole}")
    return "\n".join(lines)


def _check_variables(checkpoint: str, config: transformers.PreTrainedConfig, data: str, dataset: Dataset) -> None:
    """Raise UserError if a series has another number of variables than the checkpoint forecasts."""
    series = dataset.manifest.series
    if series is not None and len(series["names"]) != config.input_channels:
        raise UserError(
            f"{data} has {len(series['names'])} variables, {checkpoint} forecasts {config.input_channels}: "
            "it was trained on another series"
        )


def _check_vocabulary(
    checkpoint: str, config: transformers.PreTrainedConfig, data: str, dataset: ShardedDataset, folder: Path | None
) -> None:
    """Raise UserError unless an id means the same to the checkpoint and in the data, as far as both say what it means.

    `folder` is that of the data's tokenizer, None without one.
    """
    advice = "prepare the data with the checkpoint's tokenizer (longmix prepare text --tokenizer)"
    if folder is None:
        advice = "prepare the data together with those that it was trained on, as their --test"
    if (dataset.manifest.vocab_size or 0) > config.vocab_size:
        raise UserError(
            f"{data} has a vocabulary of {dataset.manifest.vocab_size}, {checkpoint} one of {config.vocab_size}: "
            f"{advice}"
        )
    if has_other_vocabulary(checkpoint, folder):
        raise UserError(f"{data} was made with another tokenizer than {checkpoint}'s: {advice}")
