import argparse
import json
import random
from pathlib import Path

import pytest

from longmix.trainer.finetune import command, jobs

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "bird",
    "sees",
    "likes",
    "chases",
    "red",
    "small",
    "old",
    "quick",
    "house",
    "tree",
    "runs",
    "sleeps",
    "and",
    "or",
]


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    generator = random.Random(0)
    return [" ".join(generator.choices(WORDS, k=generator.randint(3, 9))) for _ in range(200)]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory, sentences):
    """A tokenizer of ours, trained on a few words."""
    from longmix.data_prep.tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(sentences, folder, vocab_size=45, model_max_length=32)
    return folder


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory):
    """A random BERT of two tiny layers with a WordPiece tokenizer, as it would come from elsewhere."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcdefghijklmnopqrstuvwxyz0123456789"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=32).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def own_checkpoint(tmp_path_factory, tokenizer_folder):
    """A random s3attention masked-language model with our tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForMaskedLM

    import longmix.modeling  # noqa: F401
    from longmix.data_prep.tokenizer import load_tokenizer, save_tokenizer

    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = load_tokenizer(tokenizer_folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "s3attention",
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        type_vocab_size=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


# The command around the training loop, which a quick stand-in replaces.


@pytest.fixture
def glue(tmp_path, sentences):
    """CoLA (label: whether "cat" is in the sentence) and RTE without a training file."""
    folder = tmp_path / "glue"
    (folder / "CoLA").mkdir(parents=True)
    (folder / "RTE").mkdir()
    rows = [f"x\t{int('cat' in text.split())}\t\t{text}" for text in sentences[:60]]
    (folder / "CoLA" / "train.tsv").write_text("\n".join(rows[:40]) + "\n", encoding="utf-8")
    (folder / "CoLA" / "dev.tsv").write_text("\n".join(rows[40:]) + "\n", encoding="utf-8")
    (folder / "CoLA" / "test.tsv").write_text("index\tsentence\n0\tthe cat\n1\ta dog\n", encoding="utf-8")
    (folder / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n", encoding="utf-8")
    return folder


@pytest.fixture
def trained(monkeypatch, bert_folder):
    """Replaces training: saves a classifier with the start's weights; the list of run files that it was asked for."""
    from transformers import AutoModelForSequenceClassification

    asked = []

    def train(values, requests):
        asked.append(values)
        folder = Path(values["run"]["dir"])
        manifest = json.loads((Path(values["data"]["train"]) / "manifest.json").read_text())
        model = AutoModelForSequenceClassification.from_pretrained(
            values["model"]["from"], num_labels=manifest["num_labels"] or 1, ignore_mismatched_sizes=True
        )
        model.save_pretrained(folder / "model")
        (folder / "checkpoints").mkdir()
        return 0

    monkeypatch.setattr(jobs, "train", train)
    return asked


@pytest.fixture(scope="session")
def finetune():
    """finetune(model, data, output, *options) -> the exit code of the command."""
    parser = argparse.ArgumentParser()
    command.add_finetune_parser(parser.add_subparsers())

    def run(model, data, output, *more):
        words = ["--model", model, "--data", data, "--output", output, "--jobs", 1, *more]
        return command.run(parser.parse_args(["finetune", *map(str, words)]))

    return run
