"""Checkpoints in Hugging Face's layout, ours or anybody's: found and loaded, every failure as one line for the user."""

import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import huggingface_hub
import safetensors
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers.utils import find_adapter_config_file, is_peft_available

import longmix.modeling  # noqa: F401  registers our model types
from longmix.data_prep.errors import UserError, reason_of
from longmix.data_prep.tokenizer import load_tokenizer

from .folder import CONFIGURATION, held, is_damaged, refuse_sizes, weight_files
from .foreign_code import ADAPTER, foreign_code_mistakes
from .fourier import transform_in_fp32
from .hub import why_unreachable
from .sizes import measure

# What a run sets by itself in a configuration that it starts from, and what says how that was saved.
_SET_BY_THE_RUN = {
    *("architectures", "auto_map", "dtype", "transformers_version", "_name_or_path", "return_dict"),
    *("id2label", "label2id", "num_labels", "problem_type", "input_length", "horizon", "is_causal", "is_decoder"),
}
# Names in one line.
_LONGEST_LIST = 8
_TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json")
# What transformers lets through when a configuration or weights are not what they should be.
_FAILURES = (
    *(OSError, EOFError, ImportError, RuntimeError),
    *(ValueError, TypeError, KeyError, AttributeError, StrictDataclassError),
    SafetensorError,
)


# Configuration and weights. Whatever stands in the folder comes from outside: nothing in it is unpickled or run, and
# each of the many ways in which it can be wrong ends in one line.


def load_config(source: str) -> transformers.PreTrainedConfig:
    """The configuration of `source`, a model folder or a hub name.

    Raises:
        UserError: no such folder, a run folder in its place, no configuration that can be read, or one that asks for
            code or weights from elsewhere.
    """
    folder = Path(source)
    if not folder.is_dir() and (folder.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1):
        raise UserError(f"{source}: no such folder; give a model folder, or a name on the hub")
    if (folder / "model" / "config.json").is_file() and not (folder / "config.json").is_file():
        raise UserError(f"{source} is a run folder; its checkpoint is {folder / 'model'}")
    if (folder / CONFIGURATION).is_file():
        refuse_sizes(folder)
    try:
        with _silence(huggingface_hub.logging):
            mistakes = foreign_code_mistakes(transformers.PreTrainedConfig.get_config_dict(source, **_place(source))[0])
            if mistakes:
                raise UserError(f"{source}: in its config.json {' '.join(mistakes[0])}")
            # False: left open, transformers would ask on the terminal whether to run the checkpoint's code.
            config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False, **_place(source))
    except UserError:
        raise
    except (*_FAILURES, RecursionError) as error:
        raise UserError(f"{source} is no loadable checkpoint: {_where_sought(source, error)}") from None
    return config


def load_model(
    source: str,
    auto_class: type,
    config: transformers.PreTrainedConfig | None = None,
    notes: list[str] | None = None,
) -> transformers.PreTrainedModel:
    """The model of `source` with fp32 parameters, complete as it was saved.

    With `config`, which says what is wanted of it, the head may be another: parts that `source` lacks, and a head for
    another number of labels, start anew. A line that names them, and what of `source` is not used, is added to `notes`.

    Raises:
        UserError: weights that are damaged, pickled, or not finite, that do not fit the configuration, or parts of the
            model not among them; with `config`, most of it.
    """
    saved = load_config(source)
    _refuse_adapter(source)
    if Path(source).is_dir():
        weight_files(Path(source))  # raises for what is not to be read
    wanted = saved if config is None else config
    if Path(source).is_dir():
        _refuse_larger(source, auto_class, wanted)
    with _silence(huggingface_hub.logging, transformers.logging):
        try:
            model, report = auto_class.from_pretrained(
                source,
                config=wanted,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                **_place(source),
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except _FAILURES as error:
            damaged = next(filter(is_damaged, sorted(Path(source).glob("*.safetensors"))), None)
            if damaged is not None:
                raise UserError(f"{damaged} is damaged or was cut short: copy it again") from None
            raise UserError(f"{source} cannot be loaded as {auto_class.__name__}: {reason(error)}") from None

    def is_head_of_another_task(name: str) -> bool:
        """Whether a weight stands outside the encoder, in a head that `source` has of another kind."""
        is_another = config is not None and type(model).__name__ not in (saved.architectures or [])
        return is_another and not name.startswith(f"{model.base_model_prefix}.")

    differing = [
        f"{name} {tuple(found)} for {tuple(expected)}"
        for name, found, expected in sorted(report["mismatched_keys"])
        if not is_head_of_another_task(name)
        and (config is None or (found[0], expected[0]) != (saved.num_labels, wanted.num_labels))
    ]
    if differing:
        says = "its configuration says" if config is None else "the fields of model say"
        raise UserError(f"{source}: the weights have other shapes than {says}: {_listed(differing)}")
    missing = sorted(report["missing_keys"])
    if config is None and missing:
        heads = " or ".join(saved.architectures or ["a model without a head"])
        raise UserError(
            f"{source} holds the weights of {heads}, not of {type(model).__name__}: {missing[0]} is not among them"
        )
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    if 2 * sum(sizes.get(name, 0) for name in missing) > sum(sizes.values()):
        raise UserError(f"{source} lacks most of the weights of a {type(model).__name__}")
    spoilt = not_finite(model)
    if spoilt is not None:
        raise UserError(f"{source}: the weights hold NaN or infinity, first in {spoilt}: take another checkpoint")
    transform_in_fp32(model)
    if notes is not None:
        anew = [*missing, *(name for name, *_ in report["mismatched_keys"])]
        notes += _start_notes(source, saved, wanted, anew, sorted(report["unexpected_keys"]))
    return model


def _refuse_larger(source: str, auto_class: type, config: transformers.PreTrainedConfig) -> None:
    """Raise UserError, before memory is taken for it, for a model of which the folder's weights are not even half."""
    try:
        size = measure(config, auto_class)
    except UserError:
        return  # loading tells it in the terms of what is loaded
    _, numbers = held(Path(source))
    if size.parameters > 2 * numbers:
        name, shape = size.largest
        raise UserError(
            f"{source} lacks most of the weights of this {config.model_type}: it holds {numbers:,} numbers, and the "
            f"configuration asks for {size.parameters:,}, the largest {name} {shape}"
        )


def _start_notes(
    source: str,
    saved: transformers.PreTrainedConfig,
    wanted: transformers.PreTrainedConfig,
    anew: list[str],
    unused: list[str],
) -> list[str]:
    """One line about what a run does not take over from the checkpoint that it starts from; none if it takes all."""
    before, now = saved.to_dict(), wanted.to_dict()
    changed = [
        f"{name} {now[name]!r} (there {before[name]!r})"
        for name in sorted(before.keys() & now.keys() - _SET_BY_THE_RUN)
        if before[name] != now[name]
    ]
    parts = {"these start anew": _of_modules(anew), "these of it are not used": _of_modules(unused)}
    parts["other fields of model"] = changed
    told = [f"{text}: {_listed(names)}" for text, names in parts.items() if names]
    return [f"note: model.from {source}: {'; '.join(told)}"] if told else []


def _of_modules(names: list[str]) -> list[str]:
    """Names of weights, with one entry in place of all those of a layer, `layers.3.*`, and layers in their order."""
    layers = (re.sub(r"(\.\d+)\..*", r"\1.*", name) for name in names)
    return sorted(
        set(layers),
        key=lambda name: [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.split(".")],
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LONGEST_LIST} more" if len(names) > _LONGEST_LIST else ""
    return f"{', '.join(names[:_LONGEST_LIST])}{more}"


def _refuse_adapter(source: str) -> None:
    """Raise UserError for an adapter, which transformers would put on a model that lies elsewhere."""
    if Path(source).is_dir():
        is_adapter = (Path(source) / ADAPTER).exists()
    else:
        is_adapter = is_peft_available() and find_adapter_config_file(source, **_place(source)) is not None
    if is_adapter:
        raise UserError(f"{source} holds {ADAPTER}, which is not followed: merge the adapter into its model, save that")


def not_finite(model: torch.nn.Module) -> str | None:
    """The first parameter that is not finite, or buffer that holds NaN (infinity may well be meant there)."""
    parameters = (name for name, value in model.named_parameters() if not torch.isfinite(value).all())
    buffers = (name for name, value in model.named_buffers() if torch.isnan(value).any())
    return next(itertools.chain(parameters, buffers), None)


def stored_not_finite(folder: Path) -> str | None:
    """The first weight in a model folder's safetensors that is not finite."""
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is no map
                if not torch.isfinite(weights.get_tensor(name)).all():
                    return name
    return None


# Tokenizers: a checkpoint and a data set fit only if an id means the same to both.


def load_checkpoint_tokenizer(source: str) -> transformers.PreTrainedTokenizerBase:
    """The tokenizer of `source`, a model folder or a hub name. Raises UserError if it has none that can be read."""
    if Path(source).is_dir():
        return load_tokenizer(source)
    try:
        return transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False, **_place(source))
    except _FAILURES as error:
        raise UserError(f"{source}: its tokenizer cannot be loaded: {_where_sought(source, error)}") from None


def has_tokenizer(source: str) -> bool:
    """Whether a model folder holds a tokenizer; of a hub name, that is taken for granted."""
    return not Path(source).is_dir() or any((Path(source) / name).is_file() for name in _TOKENIZER_FILES)


def has_other_vocabulary(source: str, tokenizer: Path | None) -> bool:
    """Whether an id means another token to the checkpoint `source` than to the tokenizer in a folder, as far as both
    say; None is a data set without one.
    """
    if tokenizer is None or not has_tokenizer(source):
        return False
    return load_checkpoint_tokenizer(source).get_vocab() != load_tokenizer(tokenizer).get_vocab()


# A name that is no folder is one on the hub, which may be out of reach: what was fetched from it before is still here.


def _place(source: str) -> dict[str, bool]:
    """Options of `from_pretrained`: whether it may ask the hub."""
    return {"local_files_only": Path(source).is_dir() or why_unreachable() is not None}


def _where_sought(source: str, error: BaseException) -> str:
    """Why `source` could not be loaded, with the places where it was looked for if it is no folder."""
    if Path(source).is_dir():
        return reason(error)
    unreachable = why_unreachable()
    if unreachable is None:
        return f"no such folder, and as a name on the hub: {reason(error)}"
    return f"no such folder, and as a name on the hub: not fetched before, and {unreachable}"


def reason(error: BaseException) -> str:
    """The text of an exception, in one line."""
    return f"KeyError {reason_of(error)}" if isinstance(error, KeyError) else reason_of(error)


@contextlib.contextmanager
def _silence(*libraries: ModuleType) -> Iterator[None]:
    """A context in which libraries, given by their `logging`, are quiet: transformers about missing and other weights,
    which are judged instead, and the hub's client about every attempt, whose outcome is told."""
    verbosities = [library.get_verbosity() for library in libraries]
    for library in libraries:
        library.set_verbosity_error()
    try:
        yield
    finally:
        for library, verbosity in zip(libraries, verbosities, strict=True):
            library.set_verbosity(verbosity)
