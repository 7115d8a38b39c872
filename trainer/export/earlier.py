"""Model folders that earlier versions wrote, without a marker: known by the names and the content of their files."""

import re
from collections.abc import Callable
from pathlib import Path

from longmix.data_prep.state_files import read_json

from ..models.folder import CONFIGURATION, INPUTS, OBJECTIVE, is_damaged
from .card import CARD
from .flat_code import is_flat_file

# Every card has begun like this.
_FIRST_LINES = b"---\nlibrary_name: transformers\ntags: [longmix"


def earlier_model(folder: Path, names: list[str]) -> str | None:
    """The first file that is not of a model that longmix trained (`made_folders.Earlier`).

    A folder without configuration or card is somebody else's model, however its files are called.
    """
    unknown = [name for name in names if not is_written_by_us(folder / name, name)]
    if not unknown and not {CONFIGURATION, CARD} <= set(names):
        unknown = names
    return unknown[0] if unknown else None


def is_written_by_us(path: Path, name: str) -> bool:
    """Whether a file of a model folder, by its name there and its content, is of a kind that longmix writes."""
    for pattern, is_ours in _CONTENTS.items():
        if re.fullmatch(pattern, name):
            try:
                return is_ours(path)
            except (OSError, ValueError, RecursionError):
                return False
    return False


def _is_card(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_FIRST_LINES)) == _FIRST_LINES


def _is_map_with(*keys: str) -> Callable[[Path], bool]:
    def is_ours(path: Path) -> bool:
        values = read_json(path)
        return isinstance(values, dict) and set(keys) <= set(values)

    return is_ours


# The names of a folder's files, and whether a file's content is what longmix writes under its name.
_CONTENTS: dict[str, Callable[[Path], bool]] = {
    re.escape(CONFIGURATION): _is_map_with("model_type"),
    re.escape(OBJECTIVE): _is_map_with("name"),
    re.escape(INPUTS): _is_map_with("text_columns"),
    re.escape(CARD): _is_card,
    r"model(-\d{5}-of-\d{5})?\.safetensors": lambda path: not is_damaged(path),
    r"model\.safetensors\.index\.json": _is_map_with("weight_map"),
    r"(generation_config|tokenizer_config|special_tokens_map|added_tokens|tokenizer|vocab)\.json": _is_map_with(),
    r"(tokenizer|spiece|sentencepiece\.bpe)\.model|vocab\.txt|merges\.txt|chat_template\.jinja": Path.is_file,
    r"\w+\.py": is_flat_file,
}
