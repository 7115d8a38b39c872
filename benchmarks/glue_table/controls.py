"""Starts of fine-tuning that have learnt nothing: what pre-training must beat."""

import shutil
from pathlib import Path

import torch
import transformers

import longmix.modeling  # noqa: F401  registers the model types
from longmix.data_prep.files import make_folder

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
# Draws differ from the weights that pre-training with the same seed began with.
FIRST_DRAW = 1000


def make(pretrained: Path, start: str, draw: int, folder: Path) -> None:
    """A model as `pretrained`, its tokenizer included, with other weights.

    Args:
        start: "random": those that a new model begins with; "random at scale": every tensor drawn from the normal
            distribution with the mean and the standard deviation of the pre-trained one. So what fine-tuning gains from
            the size of the weights alone, such as larger steps of Adam, counts for the control too.
        draw: number of the draw.
    """
    if folder.is_dir():
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(FIRST_DRAW + draw)
        if start == "random":
            config = transformers.AutoConfig.from_pretrained(pretrained)
            model = transformers.AutoModelForMaskedLM.from_config(config)
        else:
            model = transformers.AutoModelForMaskedLM.from_pretrained(pretrained, dtype=torch.float32)
            redraw(model)
    new = folder.with_name(f".{folder.name}")
    shutil.rmtree(new, ignore_errors=True)
    make_folder(new)
    for path in pretrained.iterdir():
        if path.is_file() and not any(path.match(pattern) for pattern in WEIGHTS):
            shutil.copyfile(path, new / path.name)
    model.save_pretrained(new)
    new.rename(folder)


@torch.no_grad()
def redraw(model: torch.nn.Module) -> None:
    """Every parameter anew, with its mean and standard deviation; tied ones are one parameter."""
    for parameter in model.parameters():
        mean, deviation = parameter.mean().item(), parameter.std(correction=0).item()
        parameter.normal_(mean, deviation)
