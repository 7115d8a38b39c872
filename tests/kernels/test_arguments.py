"""Integer arguments: any integer dtype, any memory layout, lengths of any size, alike for every implementation."""

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.selection import OPERATIONS, obstacle

POSITIONS = 6
# Operation -> its result for floating arguments made by make(*shape), and the given integers.
CALLS = {
    "feature_attention": lambda make, **integers: ops.feature_attention(
        make(3, 1, 6, 2), make(3, 1, 6, 2), make(3, 1, 6, 4), causal=True, **integers
    ),
    "feature_map_attention": lambda make, **integers: ops.feature_map_attention(
        *(make(3, 1, 6, 4) for _ in range(3)), "elu", **integers
    ),
    "givens_mix": lambda make, **integers: ops.givens_mix(
        make(3, 6, 1, 2, 2), make(3, 1, 2, 5, 3), make(3, 1, 2, 5, 3), make(3, 1, 6), **integers
    ),
    "lifting_analysis": lambda make, **integers: ops.lifting_analysis(
        make(3, 6, 4), make(2, 4), make(2, 4), 2, **integers
    ),
    "lifting_synthesis": lambda make, **integers: ops.lifting_synthesis(
        make(24, 4), make(2, 4), make(2, 4), 2, 3, 6, **integers
    ),
    "linear_attention": lambda make, **integers: ops.linear_attention(
        make(3, 1, 6, 2).square(), make(3, 1, 6, 2).square(), make(3, 1, 6, 4), **integers
    ),
    "link_mix": lambda make, **integers: ops.link_mix(make(3, 6, 4), make(3, 6, 2, 3), **integers),
    "near_attention": lambda make, **integers: ops.near_attention(
        *(make(3, 1, 6, 4) for _ in range(4)), make(1, 3), make(1), 1, **integers
    ),
    "random_feature_attention": lambda make, **integers: ops.random_feature_attention(
        *(make(3, 1, 6, 4) for _ in range(3)), make(5, 4), make(1, 1, 6, 2), make(2, 1, 2, 5), **integers
    ),
    "spectral_filter": lambda make, **integers: ops.spectral_filter(make(3, 6, 4), make(5, 4, 2), 8, **integers),
    "token_givens_mix": lambda make, **integers: ops.token_givens_mix(
        make(3, 6, 1, 2, 2), make(3, 6, 1, 13), make(1, 3), torch.ones(1, 13), torch.full((1, 13), 0.5), **integers
    ),
    "wavelet_analysis": lambda make, **integers: ops.wavelet_analysis(make(3, 6, 4), make(4, 4), 2, **integers),
    "wavelet_synthesis": lambda make, **integers: ops.wavelet_synthesis(make(24, 4), make(4, 4), 2, 3, 6, **integers),
}
PERMUTATION = {"permutation": torch.tensor([[2, 0, 5, 1, 4, 3], [1, 2, 3, 0, 5, 4]])}
DOCUMENTS = {"document_ids": torch.tensor([[3, 3, 9, 9, 9, 0], [1, 2, 3, 4, 5, 5], [7, 7, 7, 7, 8, 8]])}
INTEGERS = {
    "feature_attention": DOCUMENTS,
    "givens_mix": PERMUTATION,
    "linear_attention": DOCUMENTS,
    "near_attention": DOCUMENTS,
    "random_feature_attention": {
        "positions": torch.tensor([[0, 1, 0, 1, 2, 0], [0, 0, 0, 0, 0, 1], [0, 1, 2, 3, 0, 1]]),
        **DOCUMENTS,
    },
    "link_mix": {"offsets": torch.tensor([[0, 1, 2], [0, 3, 11]]), **DOCUMENTS},
    "token_givens_mix": PERMUTATION,
}
FIELDS = [(operation, field) for operation in OPERATIONS for field in ("lengths", *INTEGERS.get(operation, {}))]


@pytest.fixture(params=["reference", "portable", "cpu"])
def run(request, monkeypatch, require_or_skip):
    """run(operation, **integers): result and gradients of an implementation, for floating arguments always the same."""
    name = request.param

    def call(operation, **integers):
        reason = obstacle(operation, "cpu", "cpu") if name == "cpu" else None
        if reason is not None:
            if not reason.startswith("it has no"):
                require_or_skip("compiler", reason)
            pytest.skip(reason)
        monkeypatch.setenv("LONGMIX_KERNELS", name)
        generator, leaves = torch.Generator().manual_seed(0), []

        def make(*shape):
            leaves.append(torch.randn(shape, generator=generator).requires_grad_())
            return leaves[-1]

        result = CALLS[operation](make, **{**INTEGERS.get(operation, {}), **integers})
        return result, *torch.autograd.grad(result.square().sum(), leaves)

    return call


def same_bits(one, other):
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.mark.parametrize(("operation", "field"), FIELDS)
def test_any_integers_in_any_layout(operation, field, run):
    lengths = torch.tensor([6, 0, 4])
    given = INTEGERS.get(operation, {}).get(field, lengths)
    expected = run(operation, **{"lengths": lengths, field: given})
    # Between numbers that would be noticed.
    apart = torch.stack([given, given + 1], -1)[..., 0]
    assert not apart.is_contiguous()
    for integers in (apart, given.to(torch.int32), given.to(torch.uint8), apart.to(torch.int16)):
        assert same_bits(run(operation, **{"lengths": lengths, field: integers}), expected)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_length_for_all_samples(operation, run):
    assert same_bits(run(operation, lengths=torch.tensor(4).expand(3)), run(operation, lengths=torch.tensor([4] * 3)))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_lengths_are_clamped(operation, run):
    clamped = run(operation, lengths=torch.tensor([6, 0, 6]))
    assert same_bits(run(operation, lengths=torch.tensor([7, -1, 2**40])), clamped)


def test_without_documents_links_too_stay_in_their_sample(run):
    clamped = run("link_mix", document_ids=None, lengths=torch.tensor([6, 0, 6]))
    assert same_bits(run("link_mix", document_ids=None, lengths=torch.tensor([600, -1, 7])), clamped)


@pytest.mark.parametrize(("operation", "field"), FIELDS)
def test_what_is_no_such_integers_is_refused(operation, field, run):
    good = INTEGERS.get(operation, {}).get(field, torch.tensor([6, 0, 4]))
    for wrong, message in (
        (good.float(), f"{field} has dtype torch.float32; allowed: torch.int64, torch.int32, "),
        (good > 2, f"{field} has dtype torch.bool; allowed: torch.int64, torch.int32, "),
        (good.tolist(), f"{field} is of type list; allowed: a tensor of integers"),
        (good[..., None], rf"{field} has shape \(.*, 1\); allowed: \({', '.join(map(str, good.shape))},?\)"),
    ):
        with pytest.raises(ValueError, match=message):
            run(operation, **{field: wrong})


@pytest.mark.parametrize("wrong", [POSITIONS, -1])
def test_a_permutation_of_other_rows_is_refused(wrong, run):
    permutation = INTEGERS["givens_mix"]["permutation"].clone()
    permutation[1, 2] = wrong
    for lengths in (None, torch.tensor([6, 0, 4])):
        with pytest.raises(ValueError, match=f"permutation holds row {wrong}; allowed: 0 .. 5"):
            run("givens_mix", permutation=permutation, lengths=lengths)


@pytest.mark.parametrize("each", [False, True])
def test_a_permutation_with_a_row_twice_is_refused(each, run):
    permutation = INTEGERS["givens_mix"]["permutation"].clone()
    permutation[1, 2] = permutation[1, 5]
    if each:
        permutation = torch.stack([INTEGERS["givens_mix"]["permutation"], permutation, permutation])
    for lengths in (None, torch.tensor([6, 0, 4])):
        with pytest.raises(ValueError, match="permutation lacks row 3 and holds another one twice"):
            run("givens_mix", permutation=permutation, lengths=lengths)


def test_a_compiled_graph_refuses_a_permutation_with_a_row_twice(run, request, monkeypatch):
    if request.node.callspec.params["run"] != "cpu":
        pytest.skip("on GPUs and in plain PyTorch a compiled graph reads no permutation")
    run("givens_mix")
    generator = torch.Generator().manual_seed(0)
    compiled = torch.compile(ops.givens_mix, fullgraph=True, backend="aot_eager")
    arguments = [
        torch.randn(shape, generator=generator) for shape in [(1, 3, 1, 2, 2), *[(1, 1, 1, 2, 3)] * 2, (1, 1, 3)]
    ]
    with pytest.raises(ValueError, match="permutation lacks row 1"):
        compiled(*arguments, None, torch.tensor([[2, 0, 2]]))
