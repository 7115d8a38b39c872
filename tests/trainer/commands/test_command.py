"""The command line in-process: exit codes, one line for a mistake, --check, doctor, completions."""

import json
import logging
import re
import shutil
import socketserver
import subprocess
import sys
import threading

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import sha256_of_folder
from longmix.kernels import selection
from longmix.trainer.cli import main
from longmix.trainer.commands import checkpoint_figures, diagnosis
from longmix.trainer.models import hub


def error_of(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("longmix: error: ") and captured.err.count("\n") == 1 and captured.out == ""
    return captured.err


def test_a_mistake_in_longmix_kernels_is_one_line(run_file, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LONGMIX_KERNELS", "gpu")
    for arguments in (("train", run_file()), ("train", "--check", run_file()), ("doctor",)):
        assert "LONGMIX_KERNELS is 'gpu'; allowed: auto, reference, " in error_of(capsys, *arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_mistakes_are_told_in_one_line_before_anything_starts(run_file, capsys, tmp_path, processes):
    path = run_file(**{"optim.lrr": 1, "batch.samples": 18})
    text = error_of(capsys, "train", path, "--processes", processes)
    assert "optim.lrr is not a key" in text and "batch.samples is 18" in text
    assert not (tmp_path / "run").exists()


def test_processes_that_do_not_divide_the_batch(run_file, capsys):
    text = error_of(capsys, "train", run_file(), "--processes", 3)
    assert "batch.samples 16 does not divide into 3 processes of micro-batches of 4" in text
    assert "; choose batch.samples as a multiple of 12, e.g. 12\n" in text
    text = error_of(capsys, "train", run_file(**{"batch.micro_batch": 16}), "--processes", 2)
    assert "batch.micro_batch can be 1, 2, 4, 8; or choose batch.samples as a multiple of 32, e.g. 32" in text
    assert "--processes is 0" in error_of(capsys, "train", run_file(), "--processes", 0)


def test_missing_data_is_told_by_the_launcher(run_file, capsys, tmp_path):
    path = run_file(**{"data.train": str(tmp_path / "nowhere")})
    assert "nowhere does not exist" in error_of(capsys, "train", path, "--processes", 2)


def test_no_run_file_and_wrong_arguments(capsys, tmp_path):
    assert "name at least one run file" in error_of(capsys, "train", "optim.lr=1")
    assert "nowhere.yaml does not exist" in error_of(capsys, "train", tmp_path / "nowhere.yaml")
    for arguments in ([], ["trian"], ["train"], ["train", "x", "--procesess", "2"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        text = capsys.readouterr().err
        assert text.startswith("longmix: error: ") and text.count("\n") == 1 and "--help" in text


def test_check_describes_the_run_and_touches_nothing(run_file, capsys, tmp_path):
    path = run_file(deepspeed="zero2", **{"model.model_type": "transformer"})
    assert main(["train", path, "--check", "--processes", "2"]) == 0
    text = capsys.readouterr().out
    # 96 x 16 tokens, 24 x 16 positions and 2 x 16 types, and what lies outside the embeddings.
    for expected in (
        "transformer, ",
        "150 samples",
        "16 samples = 2 processes x 2 micro-batches of 4",
        "DeepSpeed, ZeRO stage 2, fp32",
        "KiB of parameters, gradients and optimizer in each process",
        "on this CPU (",
        "6 = 0.64 epochs",
        "this run file is valid",
    ):
        assert expected in text
    assert "WARNING" not in text and not (tmp_path / "run").exists()
    assert "num_attention_heads is 3" in error_of(capsys, "train", path, "--check", "model.num_attention_heads=3")


def test_check_under_torchrun_describes_all_its_workers_once(run_file, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    path = run_file()
    for rank, expected in (("0", "16 samples = 2 processes x 2 micro-batches of 4"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        assert main(["train", path, "--check"]) == 0
        text = capsys.readouterr().out
        assert expected in text and bool(text) == bool(expected)
    assert not (tmp_path / "run").exists()


def test_check_counts_parameters_exactly(run_file, run_values, capsys, tmp_path):
    from longmix.trainer.models.build import build_model, model_configuration
    from longmix.trainer.objectives.objective import make_objective
    from longmix.trainer.samples.dataset import ShardedDataset
    from longmix.trainer.settings import reading

    checked = reading.from_dict(run_values(tmp_path / "run"), "test")
    manifest = ShardedDataset(checked.data.train).manifest
    objective = make_objective(checked.objective, 0, manifest, None)
    model = build_model(checked, model_configuration(checked, manifest, objective.auto_class), objective.auto_class)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert main(["train", run_file(), "--check"]) == 0
    assert f"transformer, {total:,} parameters ({total - 16 * (96 + 2):,} outside embeddings)" in (
        capsys.readouterr().out
    )


def test_doctor_reports_versions_devices_and_kernels(capsys, monkeypatch):
    code = main(["doctor"])
    text = capsys.readouterr().out
    for expected in ("torch", "deepspeed", "transformers", "devices", "compilers", "kernel spectral_filter"):
        assert expected in text
    assert (code == 0) == ("nothing is wrong" in text)
    monkeypatch.setattr(diagnosis.shutil, "which", lambda name: None)
    assert main(["doctor"]) == 1
    assert "wrong: no C++ compiler" in capsys.readouterr().out


def test_doctor_says_why_a_kernel_runs_as_it_does(capsys, monkeypatch):
    def lines():
        main(["doctor"])
        return re.sub(" +", " ", capsys.readouterr().out)

    monkeypatch.delenv("LONGMIX_KERNELS", raising=False)
    monkeypatch.setattr(selection, "_obstacle", lambda *_: None)
    assert "\nkernel link_mix cpu: cpu" in lines()
    monkeypatch.setattr(selection, "_obstacle", lambda *_: "no C++ compiler (g++) on PATH")
    assert "\nkernel link_mix cpu: portable (no C++ compiler (g++) on PATH)" in lines()
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")
    assert "\nkernel link_mix cpu: portable (LONGMIX_KERNELS says so)" in lines()
    monkeypatch.setenv("LONGMIX_KERNELS", "triton")
    assert "wrong: LONGMIX_KERNELS is 'triton', but feature_attention cannot run so: no C++ compiler" in lines()


@pytest.mark.parametrize(
    ("capability", "built_for", "expected"),
    [
        ((7, 0), ["sm_70", "sm_80"], None),
        ((8, 6), ["sm_80"], None),
        ((9, 0), ["sm_80", "compute_80"], None),
        ((9, 0), ["sm_90a"], None),
        ((7, 0), ["sm_75", "sm_80"], "cu126"),
        ((10, 0), ["sm_80", "sm_90"], "a newer build of torch"),
    ],
)
def test_doctor_knows_which_devices_a_build_supports(capability, built_for, expected):
    found = diagnosis.unsupported_architecture(*capability, built_for, "Some GPU")
    assert found is None if expected is None else expected in found and "Some GPU is sm_" in found


def test_evaluate_takes_one_of_data_and_fill(capsys, tmp_path):
    assert "--data DIR|FILE or --fill TEXT" in error_of(capsys, "evaluate", tmp_path)
    assert "--data DIR|FILE or --fill TEXT" in error_of(capsys, "evaluate", tmp_path, "--data", "d", "--fill", "x")
    assert "--top is 0" in error_of(capsys, "evaluate", tmp_path, "--fill", "x", "--top", 0)
    assert "no such folder" in error_of(capsys, "evaluate", tmp_path / "none", "--fill", "a [MASK]")
    assert "no such folder" in error_of(capsys, "evaluate", "./none", "--fill", "a [MASK]")
    error = error_of(capsys, "evaluate", "none", "--fill", "[MASK]")
    assert "none is no loadable checkpoint: no such folder" in error and "HF_HUB_OFFLINE is set" in error


def test_what_the_hub_cannot_give_is_told_once(capsys, monkeypatch):
    client = logging.getLogger("huggingface_hub.utils._http")
    told = []

    def attempt(source, **options):
        client.warning("Retrying in 1s [Retry 1/5].")
        client.error("for the user")
        raise OSError("no connection")

    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", attempt)
    monkeypatch.setattr("longmix.trainer.models.loading.why_unreachable", lambda: None)
    client.addHandler(handler)
    try:
        assert "name on the hub: no connection" in error_of(capsys, "evaluate", "none", "--fill", "[MASK]")
        client.warning("from others")
    finally:
        client.removeHandler(handler)
    assert told == ["for the user", "from others"]


def test_a_hub_that_does_not_answer_is_asked_once(capsys, monkeypatch):
    asked = []

    class Silent(socketserver.BaseRequestHandler):
        def handle(self):
            asked.append(self.request.recv(4096).split(b"\r\n")[0])

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Silent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        place = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", place)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        hub.why_unreachable.cache_clear()
        try:
            for name in ("nobody/nothing", "nothing"):
                error = error_of(capsys, "evaluate", name, "--fill", "[MASK]")
                assert f"not fetched before, and {endpoint} cannot be reached" in error
        finally:
            hub.why_unreachable.cache_clear()
            server.shutdown()
    # Of its own accord the client asks once in a process for the programs that it may be called by.
    assert [request for request in asked if b"/api/agent-harnesses" not in request] == [b"HEAD / HTTP/1.1"]


@pytest.fixture(scope="module")
def word_model(tmp_path_factory):
    """A model folder with a tokenizer that always answers with the piece for "house"."""
    import torch
    from transformers import AutoConfig, AutoModelForMaskedLM

    import longmix.modeling  # noqa: F401
    from longmix.data_prep.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer

    folder = tmp_path_factory.mktemp("words")
    sentences = [f"the {animal} sees a {colour} house" for animal in ("cat", "dog") for colour in ("red", "old")] * 40
    train_tokenizer(sentences, folder / "tokenizer", vocab_size=22, model_max_length=16)
    tokenizer = load_tokenizer(folder / "tokenizer")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
    model = AutoModelForMaskedLM.from_config(
        AutoConfig.for_model("transformer", vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **shape)
    )
    house = tokenizer.convert_tokens_to_ids("▁house")
    assert house != tokenizer.unk_token_id
    with torch.no_grad():
        model.get_output_embeddings().bias[house] = 20.0
    model.save_pretrained(folder / "model")
    save_tokenizer(tokenizer, folder / "model")
    return folder / "model"


def test_completions_of_a_text(word_model, capsys):
    assert main(["evaluate", str(word_model), "--fill", "[MASK] cat [MASK] dog", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert [line.split()[2] for line in (lines[0], lines[2])] == ["house", "house"]
    assert float(lines[0].split()[0]) > 99
    # The other mask stays where it is.
    assert lines[0].endswith("house cat [MASK] dog") and lines[2].endswith("[MASK] cat house dog")
    with pytest.raises(UserError, match=r"has no \[MASK\]"):
        checkpoint_figures.fill(str(word_model), "nothing hidden", 1)
    with pytest.raises(UserError, match="the model takes 16"):
        checkpoint_figures.fill(str(word_model), "[MASK] " * 40, 1)
    error_of(capsys, "evaluate", word_model, "--fill", "[MASK] " * 40)  # one line, none of transformers


def test_a_checkpoint_that_is_not_whole_is_refused_in_one_line(word_model, capsys, tmp_path):
    """A damaged file, weights of another shape, another head, a tokenizer without a mask: nothing is made up."""
    from transformers import AutoModelForSequenceClassification

    def copy(name):
        return shutil.copytree(word_model, tmp_path / name)

    weights = copy("cut") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert f"{weights} is damaged" in error_of(capsys, "evaluate", tmp_path / "cut", "--fill", "a [MASK]")
    config = copy("wide") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"intermediate_size": 24}))
    text = error_of(capsys, "evaluate", tmp_path / "wide", "--fill", "a [MASK]")
    assert "encoder.layers.0.feed_forward.inner.bias (64,) for (24,), encoder.layers.0.feed_forward.inner" in text
    AutoModelForSequenceClassification.from_pretrained(word_model).save_pretrained(copy("classifier"))
    text = error_of(capsys, "evaluate", tmp_path / "classifier", "--fill", "a [MASK]")
    assert "is a TransformerForSequenceClassification, and --fill asks models of objective mlm alone" in text
    names = copy("maskless") / "tokenizer_config.json"
    names.write_text(json.dumps({**json.loads(names.read_text()), "mask_token": None}))
    assert "has no mask token" in error_of(capsys, "evaluate", tmp_path / "maskless", "--fill", "a [MASK]")


def test_data_of_another_tokenizer_is_refused(word_model, write_run_file, capsys, tmp_path):
    """As many tokens, but other ones; a checkpoint without a tokenizer cannot be compared."""
    from longmix.data_prep.shards import write_dataset
    from longmix.data_prep.tokenizer import load_tokenizer, train_tokenizer

    size = len(load_tokenizer(word_model))
    train_tokenizer(
        ["old cats see the red house as dogs do"] * 40, tmp_path / "other", vocab_size=size, model_max_length=16
    )
    shutil.copytree(word_model.parent / "tokenizer", tmp_path / "own")
    for name, tokenizer in (("same", "own"), ("foreign", "other")):
        columns = {"input_ids": {"dtype": "int32", "shape": [None]}}
        write_dataset(
            tmp_path / name,
            [{"input_ids": [2, *range(5, 12), 3]}] * 8,
            columns,
            split="train",
            split_rule="synthetic",
            vocab_size=size,
            pad_token_id=0,
            mask_token_id=4,
            special_token_ids=[0, 1, 2, 3, 4],
            sequence_length=16,
            tokenizer={"path": f"../{tokenizer}", "sha256": sha256_of_folder(tmp_path / tokenizer)},
        )
    assert main(["evaluate", str(word_model), "--data", str(tmp_path / "same")]) == 0
    assert re.search(r"^masked_accuracy +\d\.\d{4}$[^$]*^mask_probability +0\.1500$", capsys.readouterr().out, re.M)
    assert "another tokenizer" in error_of(capsys, "evaluate", word_model, "--data", tmp_path / "foreign")
    run_file = write_run_file(
        tmp_path / "from.yaml",
        {
            "run": {"dir": str(tmp_path / "run")},
            "model": {"from": str(word_model)},
            "data": {"train": str(tmp_path / "foreign")},
            "deepspeed": None,
        },
    )
    changes = ["--check", "batch.samples=4", "batch.micro_batch=4"]
    assert "model.from: " in (error := error_of(capsys, "train", run_file, *changes)) and "another tokenizer" in error
    assert main(["train", run_file, f"data.train={tmp_path / 'same'}", *changes]) == 0
    bare = shutil.copytree(word_model, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    assert main(["evaluate", str(bare), "--data", str(tmp_path / "foreign")]) == 0


def test_evaluating_on_data_of_a_larger_vocabulary_is_refused(word_model, data, capsys):
    assert "a vocabulary of 96" in error_of(capsys, "evaluate", word_model, "--data", data / "train")


@pytest.mark.parametrize(
    "verb",
    ["prepare", "train", "inspect-order", "finetune", "evaluate", "predict", "export", "push", "requeue", "doctor"],
)
def test_help_of_every_verb(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0 and len(capsys.readouterr().out) > 100


def test_help_needs_no_torch():
    code = (
        "import sys\nfrom longmix.trainer.cli import main\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(("ending", "code"), [("return 75", 75), ("raise SystemExit(2)", 2), ("raise KeyError", 1)])
def test_a_process_ends_before_the_interpreter_does(ending, code):
    text = f"""
import atexit, sys
from longmix.trainer import __main__ as entry, cli

class Kept:
    def __del__(self):
        sys.__stdout__.write("the interpreter was taken apart")

def main():
    print("said", end=" ")
    {ending}

kept = Kept()
atexit.register(print, "and tidied up")
cli.main = main
entry.run()
"""
    process = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (code, "said and tidied up\n")
    assert ("KeyError" in process.stderr) == (code == 1)
