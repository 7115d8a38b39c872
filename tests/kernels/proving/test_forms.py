"""Forms: calls with the same form run the same programs."""

import json

import pytest
import torch

from longmix.kernels import ops, proof_worker, proving, selection
from longmix.kernels.common.proof_inputs import documents
from longmix.kernels.selection import AROUND_MIXERS, OPERATIONS

CPU = torch.device("cpu")


def mixed(arguments, floating):
    """The first floating argument in half precision."""
    return [x.to(torch.bfloat16) if place == floating[0] else x for place, x in enumerate(arguments)]


@pytest.mark.parametrize("change", ["nothing", "lengths", "dtypes"])
def test_inputs_of_a_form_are_of_that_form(change, cases, monkeypatch):
    forms, given = [], []
    monkeypatch.setattr(selection, "GPU", "cpu")
    monkeypatch.setattr(selection, "may_prove", lambda operation: True)
    monkeypatch.setattr(selection, "_is_proved", lambda operation, device, form: forms.append(form))
    monkeypatch.setattr(selection, "_function", lambda *_: lambda *arguments: given.append(arguments))
    for module, name in cases:
        if name.startswith("long"):
            continue
        del forms[:], given[:]
        arguments, keywords = module.inputs(name, torch.Generator().manual_seed(0))
        if change == "lengths":
            samples = arguments[-2] if module.OPERATION.endswith("synthesis") else len(arguments[0])
            keywords["lengths"] = torch.tensor([1] * samples) if keywords.get("lengths") is None else None
        if change == "dtypes":
            arguments = mixed(arguments, module.FLOATING)
        getattr(ops, module.OPERATION)(*arguments, **keywords)
        form = proving.proof_module(module.OPERATION).Form(*forms[0])
        inputs, _ = proof_worker._call(module.OPERATION, form, (19, True), CPU)
        getattr(ops, module.OPERATION)(*inputs)
        assert len(forms) == 2 and forms[0] == forms[1], name
        # Programs are compiled for flags, and for what is not there.
        flags = [[x if isinstance(x, bool) else x is None for x in arguments] for arguments in given]
        assert flags[0] == flags[1], name
        if hasattr(form, "dtypes"):
            dtypes = [[given[call][place].dtype for place in range(2)] for call in range(2)]
            assert dtypes[0] == dtypes[1], name
        spelled = json.loads(json.dumps(proving.spell(form)))
        assert proving.unspell(module.OPERATION, spelled) == form, name


@pytest.mark.parametrize(
    "operation", [name for name in (*OPERATIONS, *AROUND_MIXERS) if selection._has(name, "triton")]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_typical_calls_are_calls_that_operations_take(operation, dtype, monkeypatch):
    """And of their form: `longmix doctor` proves these."""
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")
    typical = proving.typical(operation, dtype).form
    arguments, leaves = proof_worker._call(operation, typical, (19, True), CPU)
    results = proof_worker._results(operation, arguments)
    assert results[0].dtype == dtype and leaves


@pytest.mark.parametrize("shape", [(1, 2, 40, 3), (1, 2, 12, 3), (3, 2, 40, 3), (1, 5, 40, 3), (1, 1, 40, 300)])
@pytest.mark.parametrize(("causal", "documents"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_form_says_whether_heads_are_cut(shape, causal, documents):
    from longmix.kernels.attention import gpu_kernels

    proof = proving.proof_module("feature_attention")
    query, value = torch.ones(*shape[:3], 2), torch.ones(shape)
    ids = torch.zeros(shape[0], shape[2], dtype=torch.int64) if documents else None
    form = proof.form(query, query, value, None, causal, ids)
    inputs = proof.inputs("feature_attention", form, 19, True, torch.Generator())
    for rows, values, own_ids in ((query, value, ids), (inputs[0], inputs[2], inputs[5])):
        grid, _ = gpu_kernels._launch(rows, values, causal, True, own_ids)
        assert (grid[2] > 1) == form.cut


@pytest.mark.parametrize("operation", ["givens_mix", "token_givens_mix"])
def test_the_proof_of_many_chunks_has_many(operation):
    """The scan over them has other programs there."""
    from longmix.kernels.givens_mix.chunks import SCANS

    proof, typical = proving.proof_module(operation), proving.typical(operation, torch.float32).form
    for scan, _ in SCANS:
        inputs = proof.inputs(operation, typical._replace(scan=scan), 19, False, torch.Generator())
        assert proof.form(*inputs).scan == scan


# Of proofs of 12 heads on a GPU, whose heads are cut into three pieces.
@pytest.mark.parametrize(("positions", "rows_of_piece"), [(352, 128), (323, 112), (323, 128)])
def test_a_document_of_a_proof_goes_over_a_whole_piece(positions, rows_of_piece):
    """What a piece hands on by way of the next one is in no shorter document."""
    first = documents(3, positions, torch.Generator())[0]
    assert len(first[rows_of_piece - 1 : 2 * rows_of_piece + 1].unique()) == 1
    assert len(first[:rows_of_piece].unique()) == 3 and len(first[2 * rows_of_piece :].unique()) > 1


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_of_a_proof_lie_as_those_of_its_form(heads, dtype):
    query, _, value = torch.ones(2, 9, 3, heads, 4, dtype=dtype).transpose(1, 3).unbind(2)
    for values in (value, value.contiguous()):
        arguments = query, query, values, torch.ones(5, 4), None, None, None, None, False, None
        form = proving.proof_module("random_feature_attention").form(*arguments)
        inputs, _ = proof_worker._call("random_feature_attention", form, (19, True), CPU)
        assert inputs[2].is_contiguous() == values.is_contiguous() and inputs[2].dtype == dtype
