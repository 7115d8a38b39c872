"""The Triton kernels, compiled for cards that are not here: what they spill, whether cards take them, and which."""

import ast
import json
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
LARGEST_GRID = (2**31 - 1, 65535, 65535)
SHARES = 20  # of which one of the unchanged kernels is compiled again


@pytest.fixture(scope="module")
def compiling(script, triton):
    """benchmarks/gpu_model/compiling.py."""
    return script("gpu_model.compiling")


@pytest.fixture(scope="module")
def bounds(compiling, require_or_skip):
    """What may spill and what is too large, with the Triton that is installed."""
    stored = json.loads(compiling.BOUNDS.read_text())
    if stored["triton"] != compiling.version("triton"):
        require_or_skip("triton", f"the bounds are those of Triton {stored['triton']}")
    return stored


def beyond(bounds, table):
    """{(case, target, kernel): (value, bound)} of what is larger than its bound, 0 where there is none."""
    entries = ((case, target, kernel) for case in table for target in table[case] for kernel in table[case][target])
    pairs = {
        (case, target, kernel): (table[case][target][kernel], bounds.get(case, {}).get(target, {}).get(kernel, 0))
        for case, target, kernel in entries
    }
    return {place: pair for place, pair in pairs.items() if pair[0] > pair[1]}


def check(compiling, bounds, kernels):
    """The promises of every compiled kernel."""
    assert kernels
    assert beyond(bounds["spilled_bytes"], compiling.worst(kernels, "spilled_bytes")) == {}
    large = compiling.worst((kernel for kernel in kernels if not kernel.fits), "shared_bytes")
    assert beyond(bounds["too_large"], large) == {}


@pytest.mark.full
def test_covering_kernels_spill_no_more_than_they_did(compiling, bounds):
    # Those of whole documents fill their registers with matrix products.
    cases = ["attention-features-whole-m64-d64", "attention-logarithms-whole-m256-d64"]
    kernels = compiling.compiled_kernels([80], cases, processes=1)
    check(compiling, bounds, kernels)
    names = {"document_sums", "whole_forward", "whole_backward", "document_keys"}
    assert {kernel.name for kernel in kernels} == names
    assert all(kernel.registers > 128 for kernel in kernels if kernel.name.startswith("whole"))
    for kernel in kernels:  # on tensor cores a warp has 16 features
        assert kernel.threads == (128 if kernel.dtype != "float32" and "m64" in kernel.case else 256)


@pytest.mark.full
def test_half_precision_is_multiplied_on_tensor_cores(compiling):
    found = {}
    for kernel in compiling.compiled_kernels([70, 80], ["random-d64-m64"], processes=1):
        found.setdefault((kernel.target, kernel.dtype), {})[kernel.name] = kernel.tensor_core_instructions
        if kernel.target == "sm_70":  # where there are none for fp32
            assert kernel.tensor_core_instructions == 0 and kernel.threads == 256
    pieces = {"piece_sums", "piece_forward", "piece_queries", "piece_keys"}
    for dtype in ("float32", "float16", "bfloat16"):
        counts = found["sm_80", dtype]
        if dtype == "float32":
            # Features alone, of 8 of 16 rows and of 8 of 64 channels at once, three instructions in place of one.
            assert {counts[name] for name in pieces} == {2 * 8 * 3}
        else:
            assert all(counts[name] > 2 * 8 * 3 for name in pieces)


@pytest.mark.full
def test_kernels_compile_for_sizes_of_one(compiling):
    """Which Triton compiles as constants."""
    kernels = compiling.compiled_kernels([80], ["links-ones", "spectral-ones"], processes=1)
    assert {kernel.case for kernel in kernels} == {"links-ones", "spectral-ones"}


@pytest.mark.full
@pytest.mark.slow
def test_no_kernel_spills_more_than_it_did(compiling, bounds, pytestconfig):
    """All of them; of the very sources that have been compiled for the bounds a twentieth, which the seed draws."""
    from gpu_model.launches import CASES

    cases = list(CASES)
    if bounds["sources"] == compiling.sources():
        cases = cases[pytestconfig.getoption("fault_seed") % SHARES :: SHARES]
    kernels = compiling.compiled_kernels(cases=cases)
    check(compiling, bounds, kernels)
    assert {kernel.case for kernel in kernels} == set(cases)
    assert {kernel.target for kernel in kernels} == {"sm_70", "sm_80", "sm_90"}


def test_sources_change_with_the_code_of_launchers_and_not_with_what_it_says(compiling, tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "FOLDER", tmp_path / "benchmarks")
    kernels = tmp_path / "kernels"
    for folder in ("one", "common", "on_cpus"):
        (kernels / folder).mkdir(parents=True)
    (kernels / "one" / "gpu_kernels.py").write_text(
        "from ..common.parts import x\nfrom ..selection import x\nfrom . import sizes\n"
    )
    seen = {
        "common/parts.py": True,
        "one/sizes.py": True,
        "one/operator.py": True,
        "one/proof.py": False,
        "on_cpus/operator.py": False,
        "selection.py": False,
    }
    for name in seen:
        (kernels / name).write_text('"""Says."""\nx = 1\n')
    before = compiling.sources()
    for name, is_seen in seen.items():
        (kernels / name).write_text('"""More."""\n# Why.\nx =   1\n')
        assert compiling.sources() == before
        (kernels / name).write_text("x = 2\n")
        assert (compiling.sources() != before) == is_seen
        (kernels / name).write_text("x = 1\n")


@pytest.mark.full
def test_grids_of_the_largest_shapes_are_launched(compiling):
    launches = compiling.launched_grids()
    assert {case.rpartition("-")[2] for case, _, _ in launches} == {"8x65536", "32768x16"}
    refused = [launch for launch in launches if any(n > most for n, most in zip(launch[2], LARGEST_GRID, strict=False))]
    assert refused == []


def is_program(node):
    """True for a function with @triton.jit or @triton.jit(...)."""
    decorators = map(ast.unparse, node.decorator_list) if isinstance(node, ast.FunctionDef) else ()
    return any(decorator.partition("(")[0] == "triton.jit" for decorator in decorators)


def launched_kernels():
    """Names of the @triton.jit functions that the launchers of kernels/ name: what only programs call is a part."""
    trees = [ast.parse(path.read_text()) for path in KERNELS.glob("**/*.py")]
    programs = {node.name for tree in trees for node in tree.body if is_program(node)}
    launched = set()
    for tree in trees:
        rest = [node for part in tree.body if not is_program(part) for node in ast.walk(part)]
        imported = {name.name for node in rest if isinstance(node, ast.ImportFrom) for name in node.names}
        called = {id(node.func) for node in rest if isinstance(node, ast.Call)}
        named = {node.id for node in rest if isinstance(node, ast.Name) and id(node) not in called}
        launched |= named & (imported | {node.name for node in tree.body if is_program(node)})
    return programs & launched


@pytest.mark.full
def test_every_kernel_has_a_case(compiling):
    from gpu_model.launches import CASES

    assert {kernel for _, kernel, _ in compiling.launched_grids(CASES)} == launched_kernels()


@pytest.mark.full
def test_what_the_kit_proves_compiles_without_a_card(script, triton, tmp_path):
    script("gpu_kit.compiling").compile_share([90], tmp_path, 0, 10**6)
    assert list(tmp_path.rglob("whole_forward.cubin")) and list(tmp_path.rglob("whole_backward.cubin"))


@pytest.mark.full
def test_a_case_that_does_not_compile_is_told(compiling):
    with pytest.raises(RuntimeError, match=r"no-such-case for sm_80: KeyError"):
        compiling.compiled_kernels([80], ["no-such-case"], processes=1)
