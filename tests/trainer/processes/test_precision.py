"""The precision that `auto` stands for, by what the system says of the processor."""

import pytest
import torch

from longmix.trainer.processes import precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("facts", "expected", "reason"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 avx512_vnni\n", "bf16", "AVX512-BF16"),
        ("flags\t\t: fpu avx512_bf16 amx_bf16 amx_tile\n", "bf16", "AMX-BF16"),
        ("flags\t\t: fpu avx512f avx512_vnni amx_int8\n", "fp32", "no bf16 arithmetic"),
        ("model name\t: avx512_bf16\nflags\t\t: fpu avx2\n", "fp32", "no bf16 arithmetic"),
        ("Features\t: fp asimd bf16\n", "fp32", "no bf16 arithmetic"),
        ("", "fp32", "no bf16 arithmetic"),
        (None, "fp32", "no bf16 arithmetic"),
    ],
)
def test_auto_takes_bf16_where_the_processor_multiplies_it(monkeypatch, tmp_path, facts, expected, reason):
    path = tmp_path / "cpuinfo"
    if facts is not None:
        path.write_text(f"processor\t: 0\n{facts}processor\t: 1\n{facts}", encoding="utf-8")
    monkeypatch.setattr(precision, "_CPU_FACTS", str(path))
    found, why = precision.choose_precision(CPU)
    assert found == precision.resolve_precision("auto", CPU) == expected and reason in why
    assert precision.resolve_precision("fp16", CPU) == "fp16"


def test_auto_takes_fp32_where_torch_cannot_use_what_the_processor_has(monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text("flags\t: avx512_bf16\n", encoding="utf-8")
    monkeypatch.setattr(precision, "_CPU_FACTS", str(tmp_path / "cpuinfo"))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert precision.resolve_precision("auto", CPU) == "fp32"
