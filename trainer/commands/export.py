"""The verb `export`: a plain Hugging Face folder from a run's checkpoint."""

import argparse

from longmix.data_prep.errors import printable
from longmix.data_prep.options import output_folder

from ..settings.mistakes import say_loading


def add_parser(verbs) -> None:
    """Add `export` to the command line."""
    parser = verbs.add_parser(
        "export",
        help="a plain Hugging Face folder from a run's checkpoint, if wanted with the model's code",
        description="Copy the model of a checkpoint of a run, or a model folder: config.json, model.safetensors, "
        "tokenizer; with --self-contained the model's code, with --onnx model.onnx, too.",
    )
    parser.add_argument(
        "source", metavar="RUN | MODEL", help="the run folder (run.dir), a checkpoint, or a model folder"
    )
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="the checkpoint of step N (default: the newest one; RUN/model is what checkpoint.best has chosen)",
    )
    parser.add_argument("--output", type=output_folder, required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--self-contained",
        action="store_true",
        help="add the model's code, so that transformers loads it without longmix (trust_remote_code=True)",
    )
    parser.add_argument(
        "--onnx",
        action="store_true",
        help="add model.onnx, compared with torch (transformer, wavspa, paramixer, flt; pip install 'longmix[onnx]')",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    say_loading("export")
    from transformers.utils import logging as transformers_logging

    from ..export.publish import export_model

    transformers_logging.disable_progress_bar()
    written = export_model(arguments.source, arguments.step, arguments.output, arguments.self_contained, arguments.onnx)
    print(printable(f"wrote {written}"))
    return 0
