"""Converter's product of Givens rotations: explicit matrices, chunks of real rotations, and undoing them."""

import math

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.givens_mix import blocks
from longmix.kernels.selection import obstacle

NAMES = ["reference", "portable", "cpu"]
SHAPES = [
    # batch, positions, heads, width, orders, lengths, permuted
    (2, 1, 1, 1, 1, None, False),
    (3, 2, 2, 3, 1, [2, 1, 0], True),
    (2, 3, 1, 7, 2, None, True),
    (3, 33, 2, 4, 1, [33, 20, 1], False),
    (3, 34, 1, 2, 3, [34, 0, 33], True),
    (2, 97, 2, 5, 2, [97, 64], True),
    (1, 1123, 1, 2, 1, None, False),
]


def inputs(batch, positions, heads, width, orders=1, lengths=None, permuted=False, dtype=torch.float32, spread=2.0):
    """The arguments of givens_mix, leaves."""
    generator = torch.Generator().manual_seed(positions)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    value = draw(batch, positions, heads, width, 2)
    upper, lower = (spread * draw(batch, heads, orders, positions - 1, 3) for _ in range(2))
    phase = spread * draw(batch, heads, positions)
    order = torch.stack([torch.randperm(positions, generator=generator) for _ in range(orders)]) if permuted else None
    tensors = tuple(tensor.requires_grad_() for tensor in (value, upper, lower, phase))
    return tensors, None if lengths is None else torch.tensor(lengths), order


def choose(name, monkeypatch):
    """Let ops take this implementation; skips what cannot run here."""
    reason = obstacle("givens_mix", name, "cpu") if name == "cpu" else None
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv("LONGMIX_KERNELS", name)


def run(name, monkeypatch, *arguments):
    choose(name, monkeypatch)
    return ops.givens_mix(*arguments)


def matrix(angles, transposed_order):
    """H_u, or H_l for `transposed_order`, of angles (n - 1, 3), as a product of n x n matrices (eq. 6 and 7)."""
    size = len(angles) + 1
    product = torch.eye(size, dtype=torch.complex128)
    for k, (a, b, c) in enumerate(angles.tolist()):
        rotation = torch.eye(size, dtype=torch.complex128)
        e = torch.tensor([-a, b, -b, a], dtype=torch.float64)
        e = torch.polar(torch.ones_like(e), e)
        block = [[e[0] * math.cos(c), -e[1] * math.sin(c)], [e[2] * math.sin(c), e[3] * math.cos(c)]]
        rotation[k : k + 2, k : k + 2] = torch.stack([torch.stack(row) for row in block])
        product = rotation @ product if transposed_order else product @ rotation
    return product


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 2, 9])
def test_equals_the_product_of_matrices(name, length, monkeypatch):
    (value, upper, lower, phase), lengths, order = inputs(1, 9, 2, 3, 2, [length], True, torch.float64)
    result = run(name, monkeypatch, value, upper, lower, phase, lengths, order)
    for head in range(2):
        phi = torch.eye(length, dtype=torch.complex128)
        for number in range(2):
            chosen = [p for p in order[number].tolist() if p < length]
            permutation = torch.eye(length, dtype=torch.complex128)[chosen]
            h_lower = matrix(lower[0, head, number, : length - 1], True)
            h_upper = matrix(upper[0, head, number, : length - 1], False)
            phi = phi @ h_lower @ h_upper @ permutation
        eigenvalues = torch.diag(torch.polar(torch.ones(length, dtype=torch.float64), phase[0, head, :length].detach()))
        expected = phi.mH @ eigenvalues @ phi @ torch.view_as_complex(value[0, :length, head].detach())
        torch.testing.assert_close(result[0, :length, head], torch.view_as_real(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fast", NAMES[1:])
def test_equals_one_rotation_after_the_other(fast, shape, dtype, relative_rms, monkeypatch):
    tensors, lengths, order = inputs(*shape, dtype=dtype)
    cotangent = torch.randn(tensors[0].shape, dtype=dtype)
    results = {}
    for name in ("reference", fast):
        result = run(name, monkeypatch, *tensors, lengths, order)
        assert result.dtype == dtype
        gradients = torch.autograd.grad(result, tensors, cotangent, allow_unused=True)
        results[name] = (result, *(tensor for tensor in gradients if tensor is not None and tensor.any()))
    tolerances = (1e-5, 1e-4, 1e-4, 1e-4, 1e-4) if dtype == torch.float32 else (1e-12,) * 5
    for value, truth, tolerance in zip(results[fast], results["reference"], tolerances, strict=False):
        assert relative_rms(value, truth) < tolerance


@pytest.mark.parametrize("shape", [(2, 33, 1, 3), (1, 130, 2, 4)], ids=str)
@pytest.mark.parametrize("hard", ["quarter turns", "large"])
@pytest.mark.parametrize("name", NAMES[1:])
def test_hard_angles(name, shape, hard, relative_rms, monkeypatch):
    (value, upper, lower, phase), *_ = inputs(*shape)
    if hard == "quarter turns":
        upper, lower, phase = ((angles.detach() * 2).round() * (math.pi / 2) for angles in (upper, lower, phase))
    else:
        upper, lower, phase = (angles.detach() * 5e3 for angles in (upper, lower, phase))
    tensors = (value, *(angles.requires_grad_() for angles in (upper, lower, phase)))
    cotangent = torch.randn(value.shape)
    truth = run("reference", monkeypatch, *tensors)
    result = run(name, monkeypatch, *tensors)
    assert relative_rms(result, truth) < 1e-5
    gradients = [torch.autograd.grad(output, tensors, cotangent) for output in (result, truth)]
    for one, other in zip(*gradients, strict=True):
        assert relative_rms(one, other) < 1e-4


@pytest.mark.parametrize("name", NAMES[1:])
def test_it_is_unitary_and_constant_eigenvalues_do_not_mix(name, monkeypatch):
    (value, upper, lower, phase), _, order = inputs(2, 65, 2, 3, 2, None, True, torch.float64)
    result = run(name, monkeypatch, value, upper, lower, phase, None, order)
    norms = [tensor.square().sum((1, 3, 4)) for tensor in (value, result)]
    torch.testing.assert_close(*norms, rtol=1e-12, atol=0)
    result = run(name, monkeypatch, value, upper, lower, torch.full_like(phase, 0.7), None, order)
    turned = torch.view_as_real(torch.view_as_complex(value.detach()) * complex(math.cos(0.7), math.sin(0.7)))
    torch.testing.assert_close(result, turned, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES[1:])
def test_the_inverse_has_opposite_eigenvalues(name, monkeypatch):
    (value, upper, lower, phase), lengths, order = inputs(2, 75, 2, 3, 2, [75, 40], True, torch.float64)
    mixed = run(name, monkeypatch, value, upper, lower, phase, lengths, order)
    back = run(name, monkeypatch, mixed, upper, lower, -phase, lengths, order)
    mask = torch.arange(75) < lengths[:, None]
    torch.testing.assert_close(back[mask], value[mask], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("permuted", [False, True])
def test_gradients(name, permuted, monkeypatch):
    tensors, lengths, order = inputs(2, 5, 2, 2, 2, [5, 3], permuted, torch.float64)
    choose(name, monkeypatch)
    assert torch.autograd.gradcheck(lambda *given: ops.givens_mix(*given, lengths, order), tensors, fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_padding_is_neither_read_nor_written(name, monkeypatch):
    tensors, lengths, order = inputs(4, 40, 2, 3, 2, [40, 0, 1, 17], True)
    clean = run(name, monkeypatch, *tensors, lengths, order)
    mask = torch.arange(40) < lengths[:, None]
    value, upper, lower, phase = (tensor.detach().clone() for tensor in tensors)
    value[~mask] = float("nan")
    phase.transpose(1, 2)[~mask] = float("nan")
    for angles in (upper, lower):
        angles.permute(0, 3, 1, 2, 4)[~mask[:, 1:]] = float("nan")
    poisoned = tuple(tensor.requires_grad_() for tensor in (value, upper, lower, phase))
    result = run(name, monkeypatch, *poisoned, lengths, order)
    assert torch.equal(result, clean)
    assert (result[~mask] == 0).all()
    gradients = torch.autograd.grad(result.square().sum(), poisoned)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][~mask] == 0).all() and (gradients[3].transpose(1, 2)[~mask] == 0).all()
    for row in (0, 2, 3):
        length = int(lengths[row])
        own = [line[line < length] for line in order]
        angles = [tensor[row : row + 1, :, :, : length - 1] for tensor in tensors[1:3]]
        alone = run(
            name,
            monkeypatch,
            tensors[0][row : row + 1, :length],
            *angles,
            tensors[3][row : row + 1, :, :length],
            None,
            torch.stack(own),
        )
        torch.testing.assert_close(result[row, :length], alone[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_permutation_for_each_sample(name, monkeypatch):
    tensors, lengths, order = inputs(2, 12, 1, 3, 2, [12, 7], True)
    each = torch.stack([order, order.flip(-1)])
    result = run(name, monkeypatch, *tensors, lengths, each)
    torch.testing.assert_close(result[0], run(name, monkeypatch, *tensors, lengths, each[0])[0])
    torch.testing.assert_close(result[1], run(name, monkeypatch, *tensors, lengths, each[1])[1])
    assert not torch.allclose(result[1], run(name, monkeypatch, *tensors, lengths, each[0])[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_values_are_mixed_in_fp32(dtype, relative_rms, monkeypatch):
    (value, *angles), *_ = inputs(2, 70, 2, 4)
    truth = run("reference", monkeypatch, value.to(dtype), *angles)
    result = run("portable", monkeypatch, value.to(dtype), *angles)
    assert result.dtype == dtype
    assert relative_rms(result, truth) < torch.finfo(dtype).eps
    with torch.autocast("cpu", torch.bfloat16):
        inside = run("portable", monkeypatch, value, *angles)
    torch.testing.assert_close(inside, run("portable", monkeypatch, value, *angles), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["portable", "cpu", "triton"])
@pytest.mark.parametrize(("angles", "phases"), [(1.0, 0.01), (0.01, 1.0)])
def test_little_mixing_is_exact_in_half_precision(name, angles, phases, relative_rms, monkeypatch, require_or_skip):
    """Without the tokens' own values the result is small: an error that is small beside these would be large in it."""
    reason = None if name == "portable" else obstacle("givens_mix", name, "cpu")
    if reason is not None:
        require_or_skip({"cpu": "compiler", "triton": "triton"}[name], reason)
    generator, found = torch.Generator().manual_seed(0), []
    value, cotangent = torch.randn(2, 1, 64, 2, 4, 2, generator=generator).half()
    upper, lower = angles * torch.randn(2, 1, 2, 1, 63, 3, generator=generator)
    phase = phases * torch.randn(1, 2, 64, generator=generator)
    for implementation in (name, "reference"):
        leaves = [tensor.clone().requires_grad_() for tensor in (value, upper, lower, phase)]
        result = run(implementation, monkeypatch, *leaves, None, None, True)
        found.append([result, *torch.autograd.grad(result, leaves, cotangent)])
    for one, other in zip(*found, strict=True):
        assert relative_rms(one, other) < torch.finfo(torch.float16).eps


def test_values_in_planes_are_not_copied(monkeypatch):
    """A layer's real parts and its imaginary parts come apart from each other, and the result does so too."""
    choose("cpu", monkeypatch)
    (value, *angles), lengths, _ = inputs(2, 20, 2, 9, 1, [20, 11])
    planes = value.detach().permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2).requires_grad_()
    results = [ops.givens_mix(tensor, *angles, lengths) for tensor in (value, planes)]
    assert torch.equal(*results)
    assert results[1].stride() == planes.stride()
    cotangent = torch.randn(value.shape)
    gradients = [
        torch.autograd.grad(result, (tensor, *angles), cotangent)
        for result, tensor in zip(results, (value, planes), strict=True)
    ]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("shape", [(0, 5, 2, 3, 2), (2, 0, 2, 3, 2), (2, 5, 2, 0, 2)])
def test_nothing_in_nothing_out(shape):
    batch, positions, heads = shape[:3]
    angles = torch.zeros(batch, heads, 1, max(positions - 1, 0), 3)
    result = ops.givens_mix(torch.zeros(shape), angles, angles, torch.zeros(batch, heads, positions))
    assert result.shape == shape


def test_nothing_but_the_output_is_kept():
    (value, upper, lower, phase), *_ = inputs(1, 129, 1, 64)
    kept = []

    def keep(tensor):
        kept.append((tensor.data_ptr(), tensor.numel()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ops.givens_mix(value, upper, lower, phase)
    large = {pointer for pointer, size in kept if size >= value.numel()}
    assert len(large) == 1


def test_compiles_as_one_graph():
    tensors, lengths, order = inputs(2, 5, 1, 2, 1, [5, 3], True)
    lengths, order = lengths.int(), order.int()
    compiled = torch.compile(ops.givens_mix, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors, lengths, order), ops.givens_mix(*tensors, lengths, order))
    # What is not read while the graph is made is checked when it runs.
    with pytest.raises(ValueError, match=r"permutation holds row 7; allowed: 0 .. 4"):
        compiled(*tensors, lengths, order + 3)


def test_compiles_for_any_shape():
    compiled = torch.compile(ops.givens_mix, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, positions in ((3, 5), (2, 7)):
        tensors, lengths, order = inputs(batch, positions, 1, 2, 1, [5, 3, 0][:batch], True)
        torch.testing.assert_close(compiled(*tensors, lengths, order), ops.givens_mix(*tensors, lengths, order))


@pytest.mark.parametrize("length", [1, 31, 32, 33, 1100])
def test_long_recurrences_are_cut_into_chunks(length):
    generator = torch.Generator().manual_seed(0)
    factors = torch.rand(2, length, generator=generator, dtype=torch.float64) * 2 - 1
    added = torch.randn(2, length, 3, generator=generator, dtype=torch.float64)
    state = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    states = blocks.recurrence(factors, added, state)
    assert states.shape == (2, length + 1, 3)
    torch.testing.assert_close(states[:, 0], state)
    for step in range(length):
        state = factors[:, step, None] * state + added[:, step]
        torch.testing.assert_close(states[:, step + 1], state)


@pytest.mark.parametrize(
    ("number", "shape", "message"),
    [
        (0, (2, 5, 1, 3), r"value has shape \(2, 5, 1, 3\)"),
        (1, (2, 1, 1, 5, 3), r"upper has shape"),
        (2, (2, 1, 2, 4, 3), r"lower has shape"),
        (3, (2, 5), r"phase has shape \(2, 5\); allowed: \(B, H, N\) = \(2, 1, 5\)"),
        (4, (3,), r"lengths has shape"),
        (5, (1, 4), r"permutation has shape"),
    ],
)
def test_shapes_that_do_not_fit(number, shape, message):
    shapes = [(2, 5, 1, 3, 2), (2, 1, 1, 4, 3), (2, 1, 1, 4, 3), (2, 1, 5), (2,), (1, 5)]
    shapes[number] = shape
    arguments = [torch.zeros(shape, dtype=torch.int64 if place > 3 else None) for place, shape in enumerate(shapes)]
    with pytest.raises(ValueError, match=message):
        ops.givens_mix(*arguments)
