"""`longmix prepare` as a whole: what its help needs."""

import argparse
import subprocess
import sys

import pytest

from longmix.data_prep import command

HEAVY = "torch transformers datasets pyarrow scipy PIL fsspec sentencepiece tqdm"


@pytest.mark.parametrize(
    "kinds, heavy",
    [([], f"{HEAVY} numpy"), (["text"], f"{HEAVY} numpy"), (list(command.KINDS), HEAVY)],
    ids=["list of kinds", "text", "every kind"],
)
def test_help_needs_no_large_libraries(kinds, heavy):
    # Every verb of the command line makes this parser first.
    code = f"""
import argparse, contextlib, sys
from longmix.data_prep.command import add_prepare_parser
parser = argparse.ArgumentParser(prog="longmix")
add_prepare_parser(parser.add_subparsers())
for kind in {[[], *([kind] for kind in kinds)]}:
    with contextlib.suppress(SystemExit):
        parser.parse_args(["prepare", *kind, "--help"])
sys.exit(", ".join(name for name in {heavy.split()} if name in sys.modules) or 0)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    for kind in kinds:
        assert f"usage: longmix prepare {kind} [-h] --output DIR" in process.stdout
    assert set(command.KINDS) <= set(process.stdout.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["probe", "--task", "copy", "--distance", 2, "--samples", 8],
        *(
            [kind, "--train-samples", 3, "--validation-samples", 2, "--test-samples", 2, *more]
            for kind, *more in (["adding", "--length", 9], ["temporal-order", "--length", 9], ["lego"])
        ),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_task_ends_with_the_line_that_says_where_it_is(tmp_path, capsys, run_prepare, arguments):
    assert run_prepare(*arguments, "--output", tmp_path / "data") == 0
    *lines, last = capsys.readouterr().out.splitlines()
    splits = "".join(f", {line.partition(':')[0]}/" for line in lines).removeprefix(", ")
    assert splits.startswith("train/, validation/") and last == f"written to {tmp_path / 'data'}: {splits}"


@pytest.mark.parametrize("output", ["s3://bucket/data", "file:///data"])
def test_a_url_is_no_folder_to_write(output, capsys):
    parser = argparse.ArgumentParser(prog="longmix")
    command.add_prepare_parser(parser.add_subparsers())
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["prepare", "probe", "--output", output])
    assert ended.value.code == 2 and f"'{output}' is a URL" in capsys.readouterr().err
