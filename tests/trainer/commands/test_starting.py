"""The start of a command: what it tells before anything heavy is imported."""

import os
import subprocess
import sys

import pytest

CODE = """
import sys
from longmix.trainer.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
heavy = {"torch", "transformers", "deepspeed", "accelerate", "longmix.modeling"} & set(sys.modules)
assert not heavy, heavy
sys.exit(code)
"""
WHOLE = "from longmix.trainer.__main__ import run; run()"


def run(*arguments, code=CODE, **environment):
    settings = {name: value for name, value in os.environ.items() if name not in ("RANK", "LONGMIX_LAUNCHER")}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**settings, **environment})


@pytest.mark.parametrize("verb", ["", "train", "sweep", "report", "finetune", "inspect-order", "evaluate", "doctor"])
def test_help_imports_nothing_heavy(verb):
    process = run(*verb.split(), "--help")
    assert process.returncode == 0 and process.stdout.startswith(f"usage: longmix {verb}"), process.stderr


@pytest.mark.parametrize("options", [[], ["--check"], ["--processes", 2]])
def test_mistakes_in_a_run_file_are_told_before_anything_heavy_is_imported(run_file, options):
    process = run("train", run_file(), *options, "optim.lerning_rate=1", "model.hiden_size=16")
    assert process.returncode == 2, process.stderr
    assert process.stderr == (
        "longmix: error: command line: optim.lerning_rate is not a key of a run file; did you mean optim.lr?; "
        "command line: model.hiden_size is no field of TransformerConfig; did you mean hidden_size?\n"
    )


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The working folder, with files of texts, and what is in the way of an output."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.tsv").write_text("label\ttext\n1\tgood\n")
    (tmp_path / "task").mkdir()
    for name in ("train", "dev"):
        (tmp_path / "task" / f"{name}.tsv").write_text("label\ttext\n1\tgood\n0\tbad\n")
    (tmp_path / "mine.tsv").write_text("mine")


PREDICT = "predict model --data {} --output {}"
FINETUNE = "finetune --model model --task {} --data {} --output out"
MISTAKES = {
    PREDICT.format("nofile.tsv", "out.tsv"): "nofile.tsv does not exist",
    PREDICT.format("new.tsv", "out.txt"): "--output is out.txt, but its suffix must be one of .tsv, .csv, .jsonl",
    PREDICT.format("new.tsv", "mine.tsv"): "mine.tsv is not longmix's, and would be written over: move it away",
    PREDICT.format("new.tsv", "out.tsv") + " --text-columns txt": "new.tsv: no column 'txt'; it has: label, text",
    PREDICT.format("new.tsv", "out.tsv") + " --keep key": "new.tsv: no column 'key'; it has: label, text",
    "evaluate model --data nofile.tsv": "nofile.tsv does not exist",
    "evaluate model --data nofolder": "data set folder nofolder does not exist",
    "evaluate model --data new.tsv --text-columns txt": "new.tsv: no column 'txt'",
    "evaluate model --data new.tsv --label-column lable": "new.tsv: no column 'lable'",
    FINETUNE.format("cola", "nofolder"): "--data nofolder: no such folder; for a data set on the hub write hub:NAME",
    FINETUNE.format("custom", "nofolder"): "--data nofolder: no such folder",
    FINETUNE.format("custom", "new.tsv"): "--data new.tsv is a file: name the folder that holds the files",
    FINETUNE.format("custom", "task --text-columns txt"): "task/train.tsv: no column 'txt'",
    FINETUNE.format("custom", "task --seeds 0 --lr 2"): "--seeds is 0, but must be at least 1; --lr is 2, but must lie",
    FINETUNE.format("sst2", "task --intermediate custom --intermediate-data gone"): "--intermediate-data gone: no such",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_in_files_are_told_before_anything_heavy_is_imported(command, files):
    process = run(*command.split())
    assert process.returncode == 2, process.stderr
    assert process.stderr.startswith(f"longmix: error: {MISTAKES[command]}") and process.stderr.count("\n") == 1


def test_a_plan_without_data_is_refused_before_anything_heavy_is_imported(run_file, tmp_path):
    process = run("plan", run_file(**{"data.train": str(tmp_path / "gone")}), "--gpus", "V100")
    assert process.returncode == 2 and process.stderr == (
        f"longmix: error: data set folder {tmp_path / 'gone'} does not exist: make it with longmix prepare, or "
        "correct the path; without the data a run of mlm or clm can be planned with --sequence-length N and "
        "model.vocab_size=V\n"
    )


UNTIL_TORCH = """
import sys
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            sys.stderr.write(f"<{name}>")
            sys.exit(9)
sys.meta_path.insert(0, Wall())
sys.stderr.isatty = lambda: IS_TERMINAL
from longmix.trainer.cli import main
main(sys.argv[1:])
"""


def test_training_says_what_it_does_once_and_before_the_heavy_imports(run_file, tmp_path):
    # Without data it is over at once.
    path = run_file(deepspeed="zero1", **{"data.train": str(tmp_path / "nowhere")})
    announcement = f"longmix: training {tmp_path / 'run'}: loading torch and DeepSpeed\n"
    process = run("train", path, "--processes", 2, code=WHOLE)
    assert process.stderr.startswith(announcement) and "nowhere does not exist" in process.stderr
    for environment in ({"RANK": "1", "WORLD_SIZE": "2"}, {"LONGMIX_LAUNCHER": str(os.getpid())}):
        process = run("train", path, "--check", code=UNTIL_TORCH.replace("IS_TERMINAL", "False"), **environment)
        assert process.returncode == 9 and "loading" not in process.stderr


VERBS = {
    "evaluate": ["model", "--fill", "a [MASK]"],
    "predict": ["model", "--data", "new.tsv", "--output", "answers.tsv"],
    "export": ["runs/first", "--output", "alone"],
    "finetune": ["--model", "model", "--task", "cola", "--data", "task", "--output", "out"],
    "sweep": ["run.yaml"],
    "doctor": [],
}


@pytest.mark.parametrize(
    "verb", [*list(VERBS)[:1], *(pytest.param(v, marks=pytest.mark.full) for v in list(VERBS)[1:])]
)
def test_a_terminal_is_told_at_once_what_a_command_loads(verb, files):
    """A file gets what it got: its lines are counted, and read by programs."""
    for is_terminal, told in ((True, f"longmix {verb}: loading torch\n<"), (False, "<")):
        process = run(verb, *VERBS[verb], code=UNTIL_TORCH.replace("IS_TERMINAL", str(is_terminal)))
        assert process.stderr.startswith(told), process.stderr
