"""Heads with rotary positions: results, gradients, dtypes, layouts, and what is refused."""

import pytest
import torch

from longmix.kernels import build, ops, proof_worker, proving, selection
from longmix.kernels.rotary_heads import operator, proof

OPERATION = "rotary_heads"
# B, N, H, d, and whether the angles are those of each sample.
CASES = {
    "one": (1, 1, 1, 2, False),
    "odd": (2, 7, 3, 6, True),
    "whole-registers": (3, 50, 2, 64, False),
    "several-tasks": (2, 150, 1, 10, True),
    "no-samples": (0, 4, 2, 8, True),
    "no-positions": (2, 0, 2, 8, False),
    "no-features": (2, 3, 2, 0, False),
}


@pytest.fixture
def choose(choose_implementation):
    return lambda name: choose_implementation(OPERATION, name)


def inputs(label, dtype=torch.float32):
    """Projected heads and angles of no particular positions."""
    batch, positions, heads, features, samples_differ = CASES[label]
    generator = torch.Generator().manual_seed(0)
    projected = torch.randn(batch, positions, 3, heads, features, generator=generator, dtype=torch.float64).to(dtype)
    shape = (batch, 1, positions, features // 2) if samples_differ else (positions, features // 2)
    wide = torch.promote_types(dtype, torch.float32)
    angles = torch.randn(shape, generator=generator, dtype=torch.float64)
    cosine, sine = angles.cos().to(wide), angles.sin().to(wide)
    return projected, torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)


def run(projected, cosine, sine):
    """Queries, keys, values, and the gradient of a sum of them that weighs each number otherwise."""
    leaf = projected.detach().requires_grad_()
    heads = ops.rotary_heads(leaf, cosine, sine)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part.dtype) for part in heads]
    return [*(part.detach() for part in heads), *torch.autograd.grad(heads, leaf, weights)]


@pytest.mark.parametrize("label", CASES)
@pytest.mark.parametrize("name", ["portable", "cpu", "triton"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 2e-7), (torch.float64, 4e-16), (torch.bfloat16, 5e-3), (torch.float16, 6e-4)],
    ids=["fp32", "fp64", "bf16", "fp16"],
)
def test_equals_the_reference(name, label, dtype, tolerance, choose, relative_rms, poisoned_memory):
    arguments = inputs(label, dtype)
    choose("reference")
    truth = run(*(one.double() for one in arguments))
    choose(name)
    found = run(*arguments)
    assert all(one.dtype == dtype for one in found)
    assert [one.shape for one in found] == [one.shape for one in truth]
    for one, expected in zip(found, truth, strict=True):
        assert relative_rms(one, expected, absolute_at_zero=True) < tolerance
    assert torch.equal(found[2], arguments[0][:, :, 2].transpose(1, 2))


@pytest.mark.parametrize("name", ["reference", "portable", "cpu", "triton"])
def test_turns_as_llama_does(name, choose):
    choose(name)
    projected = torch.arange(12.0).view(1, 1, 3, 1, 4)
    # A quarter of a turn for the first pair, none for the second.
    query, key, value = ops.rotary_heads(projected, torch.tensor([[0.0, 1, 0, 1]]), torch.tensor([[-1.0, 0, 1, 0]]))
    found = [part.flatten().tolist() for part in (query, key, value)]
    assert found == [[-2, 1, 0, 3], [-6, 5, 4, 7], [8, 9, 10, 11]]


def test_bfloat16_is_rounded_to_the_nearest(choose):
    """Where nothing else is rounded: sums of halves and quarters of whole numbers."""
    choose("cpu")
    projected = torch.randint(-255, 256, (2, 40, 3, 2, 32), generator=torch.Generator().manual_seed(0)).bfloat16()
    projected[0, 0, :, :, ::3] = torch.tensor([torch.nan, torch.inf, -torch.inf])[:, None, None]
    angles = torch.full((40, 32), 0.5), torch.full((40, 32), 0.25) * torch.tensor([-1.0, 1.0]).repeat_interleave(16)
    exact = ops.rotary_heads(projected.float(), *angles)
    found = ops.rotary_heads(projected, *angles)
    rounded = [part.bfloat16() for part in exact]
    assert any((part != whole).any() for part, whole in zip(rounded, exact, strict=True))
    torch.testing.assert_close(found, tuple(rounded), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_kernels_of_cpus_run_forward_and_backward(dtype, choose, monkeypatch):
    choose("cpu")
    called, function = [], build.Function.__call__
    monkeypatch.setattr(
        build.Function, "__call__", lambda self, *given: called.append(self.part) or function(self, *given)
    )
    run(*inputs("odd", dtype))
    assert called == ["forward", "backward"]


def test_the_number_of_threads_changes_no_bit(choose, monkeypatch):
    choose("cpu")
    arguments, before = inputs("several-tasks"), torch.get_num_threads()
    expected = run(*arguments)
    monkeypatch.setattr(build, "ELEMENTS_PER_THREAD", 1)
    try:
        torch.set_num_threads(3)
        found = run(*arguments)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["portable", "cpu", "triton"])
def test_any_layout(name, choose):
    choose(name)
    projected, cosine, sine = inputs("odd")
    expected = run(projected, cosine, sine)
    apart = [torch.stack([one, one + 1], -1)[..., 0] for one in (projected, cosine, sine)]
    assert not any(one.is_contiguous() for one in apart)
    torch.testing.assert_close(run(*apart), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["reference", "portable", "cpu", pytest.param("triton", marks=pytest.mark.full)])
def test_first_and_second_derivatives(name, choose):
    choose(name)
    projected, cosine, sine = inputs("odd", torch.float64)
    projected = projected[:1, :3].requires_grad_()
    arguments = cosine[:1, :, :3], sine[:1, :, :3]
    for used in (slice(0, 3), slice(1, 2)):  # what nobody uses has zeros
        assert torch.autograd.gradcheck(lambda x, used=used: ops.rotary_heads(x, *arguments)[used], projected)
        assert torch.autograd.gradgradcheck(lambda x, used=used: ops.rotary_heads(x, *arguments)[used], projected)


class Heads(torch.nn.Module):
    def forward(self, *arguments):
        return ops.rotary_heads(*arguments)


def test_what_is_compiled_or_exported_is_plain_pytorch(choose):
    choose("cpu")
    arguments = inputs("odd")
    expected = ops.rotary_heads(*arguments)
    compiled = torch.compile(ops.rotary_heads, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), expected)
    exported = torch.export.export(Heads(), arguments)
    assert not any("longmix" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(*arguments), expected)


def test_what_is_compiled_for_a_gpu_is_noted_as_what_runs(monkeypatch):
    """It is no kernel, whatever has proved itself."""
    monkeypatch.delenv("LONGMIX_KERNELS", raising=False)
    monkeypatch.setattr(selection, "GPU", "cpu")
    monkeypatch.setattr(selection, "may_prove", lambda operation: True)
    monkeypatch.setattr(selection, "_is_proved", lambda *_: pytest.fail("a kernel is proved that does not run"))
    arguments = inputs("odd")
    with selection.noted_choices() as chosen:
        torch.export.export(Heads(), arguments)
    assert chosen == {OPERATION: {"portable"}}


@pytest.mark.parametrize("name", ["portable", "cpu", "triton"])
def test_functions_that_transform_functions(name, choose):
    projected, *angles = inputs("odd", torch.float64)

    def total(projected):
        return sum(part.sin().sum() for part in ops.rotary_heads(projected, *angles))

    choose("reference")
    leaf = projected.clone().requires_grad_()
    (truth,) = torch.autograd.grad(total(leaf), leaf)
    choose(name)
    torch.testing.assert_close(torch.func.grad(total)(projected), truth)
    torch.testing.assert_close(torch.func.vjp(total, projected)[1](torch.tensor(1.0).double())[0], truth)
    # Not zero without a word.
    with pytest.raises((NotImplementedError, RuntimeError), match="jvp"):
        torch.func.jvp(total, (projected,), (projected,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_torchs_rules_of_operators(name, dtype, choose):
    choose(name)
    kernels = {"cpu": "cpu_kernels", "triton": "gpu_kernels"}[name]
    projected, *angles = inputs("odd", dtype)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(operator._take_apart.registered, (kernels, projected, *angles), test_utils=tests)
    heads = [projected[:, :, part].contiguous() for part in range(3)]
    torch.library.opcheck(operator._put_together.registered, (kernels, *heads, *angles), test_utils=tests)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_kernels_of_gpus_are_one_launch_each_way(dtype, choose, triton, monkeypatch):
    choose("triton")
    from longmix.kernels.rotary_heads import gpu_kernels

    grids = []
    monkeypatch.setattr(gpu_kernels, "checked", lambda *grid: grids.append(grid) or grid)
    run(*inputs("several-tasks", dtype))
    assert grids == [(10,), (10,)]


@pytest.mark.parametrize("samples_differ", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_of_gpus_prove_themselves_on_calls_of_their_form(dtype, samples_differ, choose):
    choose("triton")
    typical = proving.typical(OPERATION, dtype).form
    form = typical._replace(heads=2, samples_differ=samples_differ)
    made, _ = proof_worker._call(OPERATION, form, (19, True), torch.device("cpu"))
    assert proof.form(*made) == form == proving.unspell(OPERATION, proving.spell(form))
    outcome = proof_worker.prove_form(OPERATION, form, torch.device("cpu"))
    assert outcome.passed and 0 < outcome.error < (1e-6 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("part", range(3))
def test_a_proof_looks_at_all_results(part, choose, triton, monkeypatch):
    choose("triton")
    from longmix.kernels.rotary_heads import gpu_kernels

    def wrong(*arguments, right=gpu_kernels.rotary_heads):
        found = right(*arguments)
        found[part][-1, -1] += 1
        return found

    monkeypatch.setattr(gpu_kernels, "rotary_heads", wrong)
    form = proving.typical(OPERATION, torch.float32).form._replace(heads=2)
    outcome = proof_worker.prove_form(OPERATION, form, torch.device("cpu"))
    assert not outcome.passed and outcome.reason.startswith("its result differs by ")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"projected": torch.ones(2, 5, 3, 8)}, r"projected has shape \(2, 5, 3, 8\); needed: \(B, N, 3, H, d\), d e"),
        ({"projected": torch.ones(2, 5, 2, 1, 4)}, r"projected has shape \(2, 5, 2, 1, 4\); needed"),
        ({"projected": torch.ones(2, 5, 3, 1, 3)}, r"projected has shape \(2, 5, 3, 1, 3\); needed"),
        ({"projected": torch.ones(2, 5, 3, 1, 4).int()}, "projected has dtype torch.int32; needed: a floating dtype"),
        ({"cosine": torch.ones(4, 4)}, r"cosine has shape \(4, 4\); allowed, for both: \(5, 4\) or \(2, 1, 5, 4\)"),
        ({"sine": torch.ones(2, 1, 5, 4)}, r"sine has shape \(2, 1, 5, 4\); allowed, for both"),
        ({"sine": torch.ones(5, 4).double()}, "sine has dtype torch.float64, on cpu; needed: torch.float32, on cpu"),
        ({"cosine": torch.ones(5, 4, device="meta")}, "cosine has dtype torch.float32, on meta; needed: torch.float32"),
    ],
)
def test_what_does_not_fit_is_refused(changed, told):
    fitting = {"projected": torch.ones(2, 5, 3, 1, 4), "cosine": torch.ones(5, 4), "sine": torch.ones(5, 4)}
    ops.rotary_heads(**fitting)
    with pytest.raises(ValueError, match=told):
        ops.rotary_heads(**{**fitting, **changed})
