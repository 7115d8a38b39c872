"""Every command on a disk that is full: 1 and one line, and the same command goes on when there is room."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("full_disks.py")
LISTOPS = "prepare listops --train-samples 5 --validation-samples 5 --test-samples 5 --output {disk}/listops"
TEXT = "prepare text --source {folder}/text.txt --vocab-size 45 --sequence-length 16 --workers 1 --output {disk}/text"
FINETUNE = (
    "finetune --model {bert} --task custom --data {folder}/task --text-columns text --label-column label --seeds 2 "
    "--epochs 1 --output {disk}/tuned"
)
# Name: (size of the disk, command, whether it is given again when there is room).
COMMANDS = {
    "prepare listops": ("16k", LISTOPS, True),
    "prepare text": ("16k", TEXT, True),
    "train": ("24k", "train {folder}/full.yaml --processes 1", True),
    "train, its checkpoints": ("80k", "train {folder}/full.yaml --processes 1", True),
    "sweep": ("4k", "sweep {folder}/full.yaml --seeds 1", False),
    "finetune": ("16k", FINETUNE, False),
    "finetune, its runs": ("60k", FINETUNE, False),
    "finetune, its checkpoints": ("200k", FINETUNE, True),
    "finetune, side by side": ("200k", f"{FINETUNE} --jobs 2", True),
    "report": ("16k", "report {folder}/run --output {disk}/report", True),
    "export": ("16k", "export {folder}/run --output {disk}/model", True),
    "quickstart": ("4k", "quickstart --text {folder}/text.txt --glue {folder}/task --output {disk}/quick", False),
}


@pytest.fixture(scope="module")
def ends(start_for_module, run_values, write_run_file, bert_folder, sentences, tmp_path_factory):
    """{name: [[exit code, standard error] on the full disk, and with room]}; None where nothing can be mounted."""
    folder = tmp_path_factory.mktemp("full")
    disk = folder / "disk"
    disk.mkdir()
    mount = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        return None
    (folder / "task").mkdir()
    rows = "".join(f"{text}\t{int('cat' in text)}\n" for text in sentences[:24])
    for name in ("train", "dev"):
        (folder / "task" / f"{name}.tsv").write_text(f"text\tlabel\n{rows}")
    (folder / "text.txt").write_text("\n\n".join(sentences))
    for name, place in (("run", folder / "run"), ("full", disk / "run")):
        write_run_file(folder / f"{name}.yaml", run_values(place, **{"optim.max_steps": 2}))
    commands = {"run": ("64m", "train {folder}/run.yaml --processes 1", False), **COMMANDS}
    jobs = [
        {
            "name": name,
            "size": size,
            "arguments": shlex.split(command.format(folder=folder, disk=disk, bert=bert_folder)),
            "again": again,
        }
        for name, (size, command, again) in commands.items()
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    program = "import os, sys; os.execvp('unshare', ['unshare', '--mount', *sys.argv[1:]])"
    code, output = start_for_module("-c", program, sys.executable, SCRIPT, folder / "jobs.json", disk).wait(600)
    assert code == 0, output
    lines = [line.removeprefix("REPORT ") for line in output.splitlines() if line.startswith("REPORT ")]
    found = {report["name"]: report["ends"] for report in map(json.loads, lines)}
    assert found.pop("run")[0][0] == 0
    return found


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_ends_a_command_with_one_line(ends, require_or_skip, name):
    if ends is None:
        require_or_skip("mount", "this system mounts nothing in a private mount namespace")
    (code, told), *again = ends[name]
    assert code == 1 and "Traceback" not in told, told
    last = told.splitlines()[-1]
    # A sweep tells what has failed, and goes on with its other runs.
    assert "No space left on device" in told or "could not be written" in last, told
    assert "error: " in last or last.endswith("the same command runs them again, and no others"), told
    assert told.count("error: ") <= 1
    for code, told in again:
        assert code == 0, told
