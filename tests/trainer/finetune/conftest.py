import random

import pytest

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
