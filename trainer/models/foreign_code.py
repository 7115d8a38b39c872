"""Fields of a model's configuration by which it would have transformers fetch and run code, or read weights otherwise.

A configuration comes from outside: `attn_implementation: org/repo` in it is an order to load that repository's kernels.
What may stand there is a choice among what is part of torch and transformers; code beside the weights (`auto_map`) is
never run, since longmix loads everything with trust_remote_code=False.
"""

from typing import Any

from longmix.data_prep.typed_maps import Mistake

ATTENTION = ("eager", "sdpa", "flex_attention")
# Others of transformers fetch their kernels when they first run.
EXPERTS = ("eager", "batched_mm", "grouped_mm")
_CHOICES = {"attn_implementation": ATTENTION, "experts_implementation": EXPERTS}
_NOT_FOLLOWED = {
    "transformers_weights": "is not followed: leave it out",
    "quantization_config": "is not followed, as longmix loads and trains fp32 weights: save the model without",
}
# The file by which a folder is no model but a change of another one, which may lie anywhere.
ADAPTER = "adapter_config.json"


def foreign_code_mistakes(fields: Any, prefix: str = "") -> list[Mistake]:
    """(key, what is wrong) for the fields of a configuration, as JSON or YAML has it, and of those nested in it."""
    mistakes: list[Mistake] = []
    waiting = [(prefix, fields)]
    while waiting:
        before, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(f"{before}{index}.", item) for index, item in enumerate(value)]
        for key, item in value.items() if isinstance(value, dict) else ():
            allowed = _CHOICES.get(str(key).removeprefix("_").removesuffix("_internal"))
            if allowed is not None:
                wrong = next((name for name in _leaves(item) if name is not None and name not in allowed), None)
                if wrong is not None:
                    mistakes.append((f"{before}{key}", f"is {wrong!r}; allowed: {', '.join(allowed)}"))
            elif key in _NOT_FOLLOWED and item is not None:
                mistakes.append((f"{before}{key}", _NOT_FOLLOWED[key]))
            else:
                waiting.append((f"{before}{key}.", item))
    return mistakes


def _leaves(value: Any) -> list[Any]:
    """The values in a map of maps or lists, or the value itself."""
    found, waiting = [], [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        else:
            found.append(value)
    return found
