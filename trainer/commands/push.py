"""The verb `push`: a model to a repository of the Hugging Face hub."""

import argparse

from longmix.data_prep.errors import printable


def add_parser(verbs) -> None:
    """Add `push` to the command line."""
    parser = verbs.add_parser(
        "push",
        help="upload a model to a repository of the Hugging Face hub",
        description="Upload a model to a repository of the Hugging Face hub, or of another that HF_ENDPOINT names: "
        "config.json, model.safetensors, tokenizer and card, in one commit; of a self-contained export the model's "
        "code, too. The token is the hub's own: hf auth login, or HF_TOKEN.",
        epilog="example: longmix push runs/articles me/articles-encoder --private",
    )
    parser.add_argument("model", metavar="RUN | MODEL", help="a run folder, a checkpoint, or a model folder")
    parser.add_argument("repository", metavar="REPO", help="OWNER/NAME, or NAME of your own; made if there is none")
    parser.add_argument("--private", action="store_true", help="for you and your organisation alone")
    parser.add_argument("--revision", metavar="BRANCH", help="the branch, made if there is none (main)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from ..checkpoints.model_folders import told_model_folder
    from ..export.push import push_model

    folder = Path(told_model_folder(arguments.model))
    address = push_model(folder, arguments.repository, arguments.private, arguments.revision)
    print(printable(f"uploaded {folder} to {address}"))
    return 0
