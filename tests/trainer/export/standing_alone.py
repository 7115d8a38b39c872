"""Run by test_self_contained.py in the folder that holds the exported models, as `standing_alone.py RESULTS`.

Loads each of them in every way that its card and its config.json offer, while longmix cannot be imported, and writes
RESULTS.safetensors (what the models give) and RESULTS.json (what else was found).
"""

import importlib.abc
import inspect
import json
import os
import re
import sys
import unittest.mock
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file


class Refuse(importlib.abc.MetaPathFinder):
    """As if longmix were not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "longmix":
            raise ModuleNotFoundError(f"No module named {name!r} (refused)", name=name)


def load(auto_class, folder, **options):
    """A head that the folder has no weights for is drawn from the same random numbers everywhere."""
    torch.manual_seed(0)
    return getattr(transformers, auto_class).from_pretrained(folder, ignore_mismatched_sizes=True, **options)


def outputs(model):
    """What a model gives for two rows, the second one padded, by name."""
    ids = torch.arange(2 * 12).view(2, 12)
    inputs = {"input_ids": ids, "attention_mask": torch.arange(12) < torch.tensor([[12], [7]])}
    if "input_ids_b" in inspect.signature(model.forward).parameters:
        inputs |= {"input_ids_b": ids.flip(1), "attention_mask_b": inputs["attention_mask"]}
    with torch.no_grad():
        found = model.eval()(**inputs)
    return {name: value.clone() for name, value in found.items() if isinstance(value, torch.Tensor)}


def by_every_auto_class(folder, **options):
    """What the models of all Auto classes in a folder's auto_map give."""
    names = json.loads((folder / "config.json").read_text())["auto_map"].keys() - {"AutoConfig"}
    return {
        f"{folder.name} {name} {key}": value
        for name in sorted(names)
        for key, value in outputs(load(name, folder, **options)).items()
    }


def multiplies_by_onednn(modules):
    """Whether a folder's code would, on some processor: where all kernels for CPUs are asked for, it does on each."""
    products = [sys.modules[name] for name in modules if name.endswith(".kernels_linear_products")]
    assert products
    with unittest.mock.patch.dict(os.environ, LONGMIX_KERNELS="cpu"):
        return any(module.is_chosen() for module in products)


def main(results):
    refuse = Refuse()
    sys.meta_path.insert(0, refuse)
    given, found = {}, {}
    folders = sorted(path for path in Path().iterdir() if path.is_dir())
    for folder in folders:
        example = {}
        exec(re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1], example)
        given |= {f"{folder} example {name}": value for name, value in outputs(example["model"]).items()}
        given |= by_every_auto_class(folder, trust_remote_code=True)
        modules = [name.split(".") for name in sys.modules if name.startswith(f"transformers_modules.{folder}.")]
        found[folder.name] = {
            "ids": example["tokenizer"]("the river runs")["input_ids"],
            "files": sorted({f"{name[3]}.py" for name in modules if len(name) == 4}),
            "oneDNN multiplies": multiplies_by_onednn([".".join(name) for name in modules]),
        }
    assert not [name for name in sys.modules if name.partition(".")[0] == "longmix"]
    # The code goes along when transformers saves a model that was loaded so.
    load("AutoModelForMaskedLM", "s3attention", trust_remote_code=True).save_pretrained("again")
    saved = load("AutoModelForMaskedLM", "again", trust_remote_code=True)
    given |= {f"again {name}": value for name, value in outputs(saved).items()}
    sys.meta_path.remove(refuse)
    import longmix.modeling  # noqa: F401

    found["beside longmix"] = [
        type(load("AutoModelForMaskedLM", "s3attention", **options)).__module__.partition(".")[0]
        for options in ({}, {"trust_remote_code": True})
    ]
    save_file(given, f"{results}.safetensors")
    Path(f"{results}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
