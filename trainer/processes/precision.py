"""The precision that `precision: auto` stands for on a device, and the digits of fp32."""

import warnings

import torch

from longmix.data_prep.errors import UserError

# What the system calls a processor's bf16 products, and what people call them.
_BF16_FLAGS = {"amx_bf16": "AMX-BF16", "avx512_bf16": "AVX512-BF16"}
_CPU_FACTS = "/proc/cpuinfo"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_precision(precision: str, device: torch.device) -> str:
    """`precision`, or what `auto` stands for on the device."""
    return choose_precision(device)[0] if precision == "auto" else precision


def choose_precision(device: torch.device) -> tuple[str, str]:
    """fp32, bf16 or fp16 for training on the device, and why.

    bf16 where the device multiplies it faster than fp32: GPUs from A100 on, processors with AVX512-BF16 or AMX-BF16;
    else fp16 on a GPU, fp32 on a CPU.
    """
    if device.type != "cuda":
        found = bf16_of_processor()
        return ("bf16", f"this processor has {found}") if found else ("fp32", "this processor has no bf16 arithmetic")
    if torch.cuda.get_device_capability(device) >= (8, 0):
        return "bf16", "this GPU has bf16 arithmetic"
    return "fp16", "this GPU has no bf16 arithmetic"


def refuse_slow(precision: str, device: torch.device) -> None:
    """Raise UserError for a precision that the device computes in, but far more slowly than in others."""
    if precision == "fp16" and device.type == "cpu":
        raise UserError("precision fp16 needs a GPU; on a CPU use fp32 or bf16")


def keep_digits_of_fp32() -> None:
    """Let GPUs compute convolutions and recurrent layers of fp32 as torch lets them compute products: not in TF32."""
    with warnings.catch_warnings(action="ignore"):  # of a newer name, which older versions do not have
        torch.backends.cudnn.allow_tf32 = False


def bf16_of_processor() -> str | None:
    """The instructions by which torch multiplies bf16 on this machine's processor; None: none that are known."""
    if not torch.backends.mkldnn.is_available():  # the library that uses them
        return None
    try:
        with open(_CPU_FACTS, encoding="utf-8", errors="replace") as file:
            flags = next((line.split() for line in file if line.startswith("flags")), [])
    except OSError:
        return None
    return next((name for flag, name in _BF16_FLAGS.items() if flag in flags), None)
