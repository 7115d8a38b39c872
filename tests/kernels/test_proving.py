"""Triton kernels that must prove themselves before they are chosen. A CPU plays the GPU, and a small script the process
that proves; what that process does is tested in this one, with planted kernels."""

import importlib.machinery
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import time
import types

import pytest
import torch

from longmix.kernels import build, ops, proof_worker, proving, selection, verdicts
from longmix.kernels.common.proof_inputs import documents
from longmix.kernels.selection import OPERATIONS

CPU = torch.device("cpu")
WITH_KERNELS = sorted(OPERATIONS)
# C++ makes neither neighbours nor features, angles and Fourier transforms with kernels of its own.
WITHOUT_CPP = {"near_attention", "random_feature_attention", "spectral_filter", "token_givens_mix"}
WITH_CPP = sorted(set(WITH_KERNELS) - WITHOUT_CPP)
# What a worker does, for each operation as `plan` says: a reason is a failure's.
WORKER = """
import json, os, signal, sys, time
asked = json.loads(sys.stdin.readline())
plan = json.load(open("PLAN"))
with open("STARTED", "a") as file:
    file.write(" ".join(operation for operation, _ in asked["proofs"]) + "\\n")
def answer(content):
    os.write(1, json.dumps(content).encode() + b"\\n")
if plan.get("start") == "never":
    sys.exit(3)
answer({"reason": plan.get("start")})
for operation, _ in asked["proofs"]:
    time.sleep(plan.get("seconds", 0))
    what = plan.get(operation, "passes")
    if what == "hangs":
        time.sleep(5)
    elif what.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, what))
        time.sleep(100)
    elif what == "passes":
        answer({"passed": True, "error": 1e-7, "seconds": 0.5})
    else:
        answer({"passed": False, "error": 0.5, "seconds": 0.5, "reason": what})
        if what == "spoilt":
            sys.exit(0)
"""


def forget():
    """As a new process begins."""
    selection._obstacle.cache_clear()
    selection._gpu_is_here.cache_clear()
    proving.is_proved.cache_clear()
    proving._told.clear()
    build._temporary_folder.cache_clear()
    build._tell.cache_clear()


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch, tmp_path):
    """Every test begins with an empty cache, and no choice made."""
    pytest.importorskip("triton")
    for name in ("LONGMIX_KERNELS", "LOCAL_RANK", "RANK", proving.HOST_RANK):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(build.TOLD, "1")
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # CPUs have Triton's kernels then
    here = selection._gpu_is_here
    forget()
    yield
    monkeypatch.setattr(selection, "_gpu_is_here", here)
    forget()


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """CPUs are GPUs. pretend(operation="what its proof does", ...) plans; pretend.started(): what each process got."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "worker.py").write_text(
        WORKER.replace("PLAN", str(tmp_path / "plan")).replace("STARTED", str(tmp_path / "started"))
    )
    (tmp_path / "started").touch()
    (tmp_path / "plan").write_text("{}")

    def always():
        return True

    always.cache_clear = lambda: None
    monkeypatch.setattr(selection, "GPU", "cpu")
    monkeypatch.setattr(selection, "_gpu_is_here", always)
    monkeypatch.setattr(proving, "card", lambda device: "Pretended GPU (sm_0)")
    monkeypatch.setattr(proving, "WORKER", (sys.executable, "-S", "-E", str(tmp_path / "worker.py")))

    def plan(**what):
        (tmp_path / "plan").write_text(json.dumps(what))

    plan.started = lambda: (tmp_path / "started").read_text().split("\n")[:-1]
    return plan


def plant(monkeypatch, folder, **kernels):
    """Let other functions be a folder's Triton kernels."""
    module = types.ModuleType(f"longmix.kernels.{folder}.gpu_kernels")
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    vars(module).update(kernels)
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def sevens(monkeypatch):
    """The Triton kernels of link_mix give sevens."""
    plant(monkeypatch, "link_mix", link_mix=lambda value, *_: torch.full_like(value, 7))


def mix(links=2, dtype=torch.float32):
    """The sum of the result of link_mix with weights of zero: 42 by sevens, else 6."""
    value = torch.ones(1, 3, 2, dtype=dtype)
    return ops.link_mix(value, torch.zeros(1, 3, 1, links), torch.zeros(1, links, dtype=torch.int64)).sum().item()


def files(tmp_path):
    return sorted((tmp_path / "cache" / "longmix" / "kernels").glob("*.json"))


def test_the_process_finds_what_this_one_finds(monkeypatch, tmp_path):
    """longmix may be on the path of a script alone, or in the folder where it was started."""
    (tmp_path / "only_here.py").write_text("input(); print('{\"reason\": null}', flush=True)")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(proving, "WORKER", (sys.executable, "-P", "-m", "only_here"))
    assert proving.fault("cpu") is None


def test_a_kernel_that_has_proved_itself_runs(pretend, sevens, tmp_path):
    assert mix() == mix() == 42
    forget()
    assert mix() == 42 and pretend.started() == ["link_mix"]
    [file] = files(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600 and json.loads(file.read_text())["outcome"]["error"] == 1e-7
    assert mix(links=3) == 42 and pretend.started() == ["link_mix"] * 2  # other programs
    assert mix(dtype=torch.float64) == 42 and pretend.started() == ["link_mix"] * 3


def test_one_that_fails_does_not_and_one_line_of_the_host_says_why(pretend, sevens, monkeypatch, capfd):
    pretend(link_mix="its result differs by 5.0e-01 (relative; allowed: 1e-05)")
    assert mix() == mix() == 6
    line = (
        "longmix: link_mix runs in plain PyTorch on Pretended GPU (sm_0), for its Triton kernel failed its proof: its "
        "result differs by 5.0e-01 (relative; allowed: 1e-05); `longmix doctor` proves it again\n"
    )
    assert capfd.readouterr().err == line
    assert mix(links=3) == 6 and capfd.readouterr().err == ""
    forget()
    pretend()
    assert mix() == 6 and capfd.readouterr().err == line and len(pretend.started()) == 2
    forget()
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert mix() == 6 and capfd.readouterr().err == ""


def test_of_another_card_its_first_rank_says_why_too(monkeypatch):
    cards = ["A", "A", "B", "B"]
    monkeypatch.setattr(proving, "card", lambda device: cards[device.index])
    speaking = []
    for rank in range(4):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        speaking.append(proving._speaks(torch.device("cuda", rank)))
    assert speaking == [True, False, True, False]


def test_of_ranks_that_see_one_card_each_the_first_says_why(monkeypatch):
    monkeypatch.setattr(proving, "card", lambda device: "A")
    monkeypatch.setenv("LOCAL_RANK", "0")
    speaking = []
    for rank in range(3):
        monkeypatch.setenv(proving.HOST_RANK, str(rank))
        speaking.append(proving._speaks(torch.device("cuda", 0)))
    assert speaking == [True, False, False]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("hangs", "its process has not answered within 0.3 seconds and was stopped"),
        ("SIGSEGV", "its process ended with SIGSEGV"),
    ],
)
def test_one_that_ends_or_holds_its_process_fails_for_good(pretend, sevens, monkeypatch, what, reason):
    monkeypatch.setattr(proving, "LONGEST_PROOF", 0.3)
    pretend(link_mix=what)
    verdict = proving.prove("link_mix", CPU)
    assert not verdict.passed and verdict.decided and verdict.reason == reason
    pretend()
    assert proving.prove("link_mix", CPU) == verdict and len(pretend.started()) == 1
    assert proving.prove("link_mix", CPU, anew=True).passed and proving.prove("link_mix", CPU).passed
    assert len(pretend.started()) == 2


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"link_mix": "SIGTERM"}, "its process ended with SIGTERM"),
        ({"start": "never"}, "before it could use the device, its process ended with exit code 3"),
        ({"start": "busy"}, "its process cannot use the device: busy"),
    ],
)
def test_what_says_nothing_of_the_kernel_is_tried_three_times(pretend, sevens, plan, reason):
    pretend(**plan)
    for _ in range(3):
        assert mix() == 6
        forget()
    pretend()
    assert mix() == 6 and len(pretend.started()) == 3
    forget()
    [proof] = proving.known_proofs(CPU)
    assert proving.prove_all([proof], CPU)[0].reason == reason
    assert proving.prove_all([proof], CPU, anew=True)[0].passed and mix() == 42


def test_three_processes_that_ended_in_a_proof_are_enough(pretend):
    pretend(link_mix="hangs")
    for number in range(1, 4):
        child = os.fork()
        if child == 0:
            proving.prove("link_mix", CPU)
            os._exit(0)
        while len(pretend.started()) < number:
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert proving.prove("link_mix", CPU).reason == "3 processes ended while it was proved"
    assert len(pretend.started()) == 3


def test_an_interruption_is_no_attempt(pretend, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(proving, "_ask", interrupted)
        for _ in range(4):
            with pytest.raises(KeyboardInterrupt):
                proving.prove("link_mix", CPU)
    assert proving.prove("link_mix", CPU).passed


def test_one_process_proves_all_and_another_one_what_it_did_not_come_to(pretend):
    pretend(linear_attention="SIGSEGV", wavelet_analysis="spoilt", lifting_analysis="wrong")
    proofs = [proving.typical(name, torch.float32) for name in WITH_KERNELS]
    found = {verdict.operation: verdict.reason for verdict in proving.prove_all(proofs, CPU)}
    failed = {"linear_attention": "its process ended with SIGSEGV", "wavelet_analysis": "spoilt"}
    assert found == {name: {**failed, "lifting_analysis": "wrong"}.get(name) for name in WITH_KERNELS}
    assert pretend.started() == [
        " ".join(WITH_KERNELS),
        "link_mix near_attention random_feature_attention spectral_filter token_givens_mix wavelet_analysis "
        "wavelet_synthesis",
        "wavelet_synthesis",
    ]


def test_processes_that_ask_at_once_prove_once(pretend):
    pretend(seconds=0.2)
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=lambda: os._exit(42 if proving.prove("link_mix", CPU).passed else 0)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [42] * 3 and pretend.started() == ["link_mix"]


def test_one_that_waits_too_long_proves_for_itself(pretend, monkeypatch, tmp_path):
    proving.prove("link_mix", CPU)
    [lock] = (tmp_path / "cache" / "longmix" / "kernels").glob("*.lock")
    monkeypatch.setattr(verdicts, "LONGEST_WAIT", 0.2)
    with verdicts.alone(lock):
        assert proving.prove("link_mix", CPU, anew=True).passed
    assert len(pretend.started()) == 2


def altered(**changes):
    return lambda text: json.dumps({**json.loads(text), **changes})


def outcome(**changes):
    return lambda text: altered(outcome={**json.loads(text)["outcome"], **changes})(text)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[:-10],
        lambda text: "[" * 100_000,
        lambda text: "[]",
        altered(identity={}),
        altered(attempts=1e999),
        outcome(passed=1),
        outcome(reason="wrong"),
        outcome(error="none"),
        outcome(more=1),
    ],
)
def test_damaged_and_foreign_verdicts_are_not_believed(tmp_path, change):
    file = verdicts.VerdictFile(tmp_path, {"operation": "link_mix"})
    file.begin(anew=False)
    assert file.verdict() is None
    file.end(verdicts.Outcome(True, 1e-7, 0.5))

    def read():
        return verdicts.VerdictFile(tmp_path, {"operation": "link_mix"}).verdict()

    assert read() == verdicts.Outcome(True, 1e-7, 0.5)
    file.path.write_text(change(file.path.read_text()))
    assert read() is None


def test_a_damaged_verdict_is_proved_anew(pretend, sevens, tmp_path):
    assert mix() == 42
    [file] = files(tmp_path)
    whole = file.read_text()
    file.write_text("{}")
    forget()
    assert mix() == 42 and pretend.started() == ["link_mix"] * 2 and file.read_text() == whole


def test_verdicts_that_others_can_write_are_not_believed(pretend, sevens, monkeypatch, tmp_path):
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    assert mix() == 42
    [file] = files(tmp_path)
    file.chmod(0o602)
    forget()
    assert mix() == 42 and len(pretend.started()) == 2 and file.stat().st_mode & 0o777 == 0o600
    file.parent.chmod(0o777)
    for started in (3, 4):
        forget()
        assert mix() == 42 and len(pretend.started()) == started


def test_a_verdict_that_cannot_be_kept_holds_for_its_process(pretend, sevens, monkeypatch, tmp_path):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(verdicts, "new_beside", full)
    assert mix() == mix() == 42 and len(pretend.started()) == 1 and files(tmp_path) == []


def test_a_verdict_is_of_all_launchers(monkeypatch):
    """Every folder from whose launchers an operation's folder imports is in the digest of its source."""
    others = {}
    for folder in set(OPERATIONS.values()):
        text = "".join(path.read_text() for path in (proving.FOLDER / folder).glob("*gpu*.py"))
        others[folder] = set(re.findall(r"^from \.\.(\w+)\.\w*gpu\w* import", text, re.MULTILINE)) - {"bands", "common"}
    assert {folder: set(names) for folder, names in proving.LAUNCHES.items()} == {f: o for f, o in others.items() if o}
    digests = {folder: proving.source_digest(folder) for folder in others}
    monkeypatch.setattr(proving, "LAUNCHES", {})
    proving.source_digest.cache_clear()
    assert {folder for folder in others if proving.source_digest(folder) != digests[folder]} == {
        folder for folder in others if others[folder]
    }
    proving.source_digest.cache_clear()


def test_a_verdict_holds_for_one_form_source_card_and_version(monkeypatch, tmp_path):
    copy = tmp_path / "kernels"
    for folder in ("attention", "link_mix", "bands", "common"):
        shutil.copytree(proving.FOLDER / folder, copy / folder)
    for name in ("operators.py", "proof_worker.py"):
        shutil.copy(proving.FOLDER / name, copy)
    monkeypatch.setattr(proving, "FOLDER", copy)
    on = "Some GPU"

    def identity(dtype=torch.float32):
        proving.source_digest.cache_clear()
        return proving._identity(proving.typical("link_mix", dtype), on)

    found = [identity()]
    found.append(identity(torch.float16))
    with open(copy / "attention" / "gpu_kernels.py", "a") as file:
        file.write("#\n")
    assert identity() == found[0]
    for name in ("link_mix/gpu_kernels.py", "link_mix/proof.py", "bands/gpu.py", "common/rows.py", "operators.py"):
        with open(copy / name, "a") as file:
            file.write("#\n")
        found.append(identity())
    on = "Another GPU"
    found.append(identity())
    monkeypatch.setattr(proving, "_triton_version", lambda: "99")
    found.append(identity())
    monkeypatch.setattr(torch, "__version__", "99")
    found.append(identity())
    monkeypatch.setattr(proving, "interpreted", lambda: None)
    found.append(identity())
    proving.source_digest.cache_clear()
    assert len({verdicts.digest(identity) for identity in found}) == len(found)


def test_force_needs_no_proof(pretend, sevens, monkeypatch):
    pretend(link_mix="wrong")
    monkeypatch.setenv("LONGMIX_KERNELS", "triton")
    assert mix() == 42
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")
    assert mix() == 6 and pretend.started() == []


def test_nothing_is_proved_for_devices_that_are_not_there_or_for_nothing(pretend, monkeypatch, capfd):
    empty = ops.link_mix(torch.ones(1, 0, 2), torch.zeros(1, 0, 1, 2), torch.zeros(1, 2, dtype=torch.int64))
    assert empty.shape == (1, 0, 2)
    monkeypatch.undo()
    monkeypatch.delenv("LONGMIX_KERNELS", raising=False)
    monkeypatch.setattr(proving, "WORKER", None)
    if not torch.cuda.is_available():
        assert ops.implementation("link_mix", "cuda") == "portable"
        assert selection.select("link_mix", torch.device("cuda"), {"portable": print}) is print  # of pretended tensors
        with pytest.raises(ValueError, match="link_mix has no Triton kernels to prove on cuda: torch sees no GPU here"):
            proving.prove("link_mix", "cuda")
    assert capfd.readouterr().err == "" and pretend.started() == []


def test_what_has_no_kernels_cannot_be_proved(pretend, monkeypatch):
    monkeypatch.setitem(OPERATIONS, "planted", "common")
    with pytest.raises(ValueError, match="planted has no Triton kernels to prove on cpu: it has no triton"):
        proving.prove("planted", CPU)


# Forms: calls with the same form run the same programs.


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
            keywords["lengths"] = torch.tensor([1] * len(arguments[0])) if keywords.get("lengths") is None else None
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


@pytest.mark.parametrize("shape", [(1, 2, 40, 3), (1, 2, 12, 3), (3, 2, 40, 3), (1, 5, 40, 3), (1, 1, 40, 300)])
@pytest.mark.parametrize(("causal", "documents"), [(False, False), (True, False), (True, True)])
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


# Of proofs of 12 heads on a GPU, whose heads are cut into three pieces.
@pytest.mark.parametrize(("positions", "rows_of_piece"), [(352, 128), (323, 112)])
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


# The process that proves: C++ plays Triton, right or with planted mistakes.


@pytest.fixture
def cpp(monkeypatch, require_or_skip):
    """cpp(operation, part=function of the right function, ...): C++ plays Triton, but for the given parts."""

    def plays(operation, **parts):
        if reason := selection.obstacle(operation, "cpu", "cpu"):
            require_or_skip("compiler", reason)
        right = importlib.import_module(f"longmix.kernels.{OPERATIONS[operation]}.cpu_kernels")
        kernels = {
            name: of_any_layout(value) if isinstance(value, types.FunctionType) else value
            for name, value in vars(right).items()
            if not name.startswith("__")
        }
        changed = {name: change(kernels[name]) for name, change in parts.items()}
        plant(monkeypatch, OPERATIONS[operation], **{**kernels, **changed})

    return plays


def of_any_layout(function):
    """C++ takes contiguous tensors, Triton some that lie in other ways."""
    return lambda *arguments: function(*(x.contiguous() if isinstance(x, torch.Tensor) else x for x in arguments))


LINKS = ("link_mix", proving.proof_module("link_mix").Form(torch.float32, 70, 2, 3, True, 64, True, True, True))


def raising(error):
    def function(*_):
        raise error

    return lambda right: function


def forgetting_a_row(right):
    def function(*arguments):
        result = torch.empty_like(right(*arguments))
        result[:, 1:] = right(*arguments)[:, 1:]
        return result

    return function


def drifting(right):
    calls = []

    def function(*arguments):
        calls.append(1)
        return right(*arguments) * (1 + 1e-7 * len(calls))

    return function


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({}, None),
        ({"link_mix": lambda right: lambda *x: right(*x) * 1.0001}, r"its result differs by 1\.0e-04 \(relative; all"),
        (
            {"link_mix_backward": lambda right: lambda *x: (right(*x)[0], right(*x)[1].flip(2))},
            r"gradient 2 differs by \d\.\de[+-]\d\d \(relative; allowed: 1e-04\)",
        ),
        ({"link_mix": forgetting_a_row}, r"its result differs by inf"),
        ({"link_mix": drifting}, "its result is another one each time"),
        ({"link_mix": raising(RuntimeError("out of resources:\nshared memory"))}, "RuntimeError: out of resources:"),
    ],
)
def test_a_proof_finds_what_is_wrong(cpp, parts, reason):
    cpp("link_mix", **parts)
    outcome = proof_worker.prove_form(*LINKS, CPU)
    assert outcome.passed == (reason is None) and outcome.decided
    if reason is None:
        assert outcome.reason is None and 0 < outcome.error < 1e-5
    else:
        assert re.match(reason, outcome.reason), outcome.reason
    assert not torch.are_deterministic_algorithms_enabled() and "LONGMIX_KERNELS" not in os.environ


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_arguments_of_several_dtypes_are_proved_as_they_are(cpp, dtypes):
    found = []

    def noting(right):
        def function(*arguments):
            found.append(tuple(x.dtype for x in arguments[:2]))
            return right(*arguments)

        return function

    cpp("link_mix", link_mix=noting)
    outcome = proof_worker.prove_form("link_mix", LINKS[1]._replace(dtype=dtypes[0], dtypes=dtypes), CPU)
    assert outcome.passed, outcome.reason
    assert set(found) == {dtypes}


def test_a_device_without_memory_proves_nothing(cpp):
    cpp("link_mix", link_mix=raising(torch.OutOfMemoryError("CUDA out of memory")))
    outcome = proof_worker.prove_form(*LINKS, CPU)
    assert not outcome.passed and not outcome.decided and outcome.reason == "the GPU has no memory left for a proof"


def test_times_are_taken_of_what_passes(cpp):
    cpp("link_mix")
    outcome = proof_worker.prove_form(*LINKS, CPU, measured_positions=8)
    assert min(outcome.milliseconds, outcome.portable_milliseconds, outcome.seconds, outcome.compile_seconds) > 0


# No C++ takes features in fp32 beside values in half precision.
PLAYED = [
    (operation, dtype)
    for operation in WITH_CPP
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    if dtype == torch.float32 or not operation.endswith("attention")
]


@pytest.mark.full
@pytest.mark.parametrize(("operation", "dtype"), PLAYED)
def test_right_kernels_pass_the_proofs_of_base_models(operation, dtype, cpp):
    cpp(operation)
    # No C++ takes one order of rotations by chunks.
    base = () if operation == "givens_mix" else (proving.typical(operation, dtype).form,)
    for form in (*base, longest_form(operation, dtype)):
        outcome = proof_worker.prove_form(operation, form, CPU)
        assert outcome.passed and outcome.error < 2e-2, outcome


def longest_form(operation, dtype):
    """The form with everything that a base model can have besides."""
    form = proving.typical(operation, dtype).form
    more = {"causal": True, "documents": True, "permuted": True, "wrap": False, "levels": 3, "orders": 2, "cut": False}
    return form._replace(**{name: value for name, value in more.items() if name in form._fields})


# A form of each folder, as small as the interpreter needs it.
SMALL = {
    "feature_attention": (1, 3, 2, False, True, False, True),
    "givens_mix": (1, 2, 1, False, True, True, True),
    "lifting_synthesis": (1, 2, 2, 1, True),
    "link_mix": (1, 1, 2, False, 64, True, True, True),
    "near_attention": (1, 2, 3, 3, 1, True, True),
    "random_feature_attention": (1, 3, 2, 2, False, True, False, 1, True, True, True),
    "spectral_filter": (2, 3, True, True, True, True),
    "token_givens_mix": (1, 2, 1, False, True, True, 3, True, True),
    "wavelet_analysis": (1, 2, 1, True),
}


@pytest.mark.full
@pytest.mark.slow
def test_real_processes_prove_the_interpreted_kernels(pretend, monkeypatch):
    monkeypatch.setattr(proving, "WORKER", (sys.executable, "-P", "-m", "longmix.kernels.proof_worker"))
    proofs = [
        proving.Proof(name, proving.proof_module(name).Form(torch.float32, *form)) for name, form in SMALL.items()
    ]
    verdicts = proving.prove_all(proofs, CPU)
    assert [(verdict.operation, verdict.passed, verdict.reason) for verdict in verdicts] == [
        (name, True, None) for name in SMALL
    ]
    assert proving.fault(CPU) is None
    assert "cannot use the device" in proving.fault("cuda:99")


@pytest.mark.full
@pytest.mark.slow
def test_a_compiled_graph_chooses_while_it_is_traced(pretend, sevens):
    compiled = torch.compile(mix_traced, fullgraph=True, backend="eager")
    assert compiled(torch.ones(1, 3, 2)).item() == 42 and pretend.started() == ["link_mix"]


def mix_traced(value):
    return ops.link_mix(value, torch.zeros(1, 3, 1, 2), torch.zeros(1, 2, dtype=torch.int64)).sum()
