"""The tokenizer: SentencePiece's own ids for every string, and special tokens that survive save and load."""

import fcntl
import json
import random
import re
import shutil

import pytest
import sentencepiece
from transformers import AutoTokenizer

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import folder_lock, sha256_of_folder
from longmix.data_prep.tokenizer import (
    call,
    encode,
    encode_masked,
    load_tokenizer,
    save_tokenizer,
    sensible_vocabulary,
    sentencepiece_processor,
    train_tokenizer,
)

WORDS = ["river", "Stone", "walks", "under", "evening", "light", "mountain", "über", "naïve", "42", "(see", "note)."]
FRAGMENTS = [
    "[MASK]", "[CLS]", "[SEP]", "<pad>", "<unk>", "<s>", "▁", "▁[MASK]", "\u2581\u2581a", "[", "]", "<", "MASK",
    "\0", "\x01\x1f", "\x7f", "\x85", "  ", "\t\n\r\n", "\u00a0", "\u2028", "\u3000", "\u200b", "\ufeff", "\ufffd",
    "\ufffe", "\U0010ffff", "\ud7ff", "e\u0301", "\u0301", "a\u0308\u0323", "\ufb01", "\u212b", "\uff2d",
    "［ＭＡＳＫ］",
    "😀", "👩\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "漢字", "日本語", "العربية", "हिन्दी", "ß", "\u0130", "\u017f",
]  # fmt: skip


def adversarial_strings(count=1500):
    generator = random.Random(1)
    strings = ["", *FRAGMENTS, *(f"a{fragment}b" for fragment in FRAGMENTS)]
    for _ in range(count):
        parts = generator.choices(FRAGMENTS + WORDS, k=generator.randint(1, 8))
        strings.append(generator.choice(["", " "]).join(parts))
    return strings


@pytest.fixture(scope="module")
def known_texts(make_documents):
    return make_documents(400, shortest=3, longest=12, words=200, others=WORDS)


@pytest.fixture(scope="module")
def tokenizer_folder(known_texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(known_texts, folder, vocab_size=60, model_max_length=128)
    return folder


def test_ids_equal_sentencepiece_for_every_string(tokenizer_folder):
    tokenizer = load_tokenizer(tokenizer_folder)
    direct = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_folder / "tokenizer.model"))
    strings = adversarial_strings()
    expected = [direct.encode(text) for text in strings]
    through_transformers = tokenizer(strings, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert through_transformers == expected
    assert sentencepiece_processor(tokenizer) is not None
    assert encode(tokenizer, strings) == expected
    assert not {0, 2, 3, 4} & {index for row in expected for index in row}


def test_unknown_characters_never_spell_a_special_token(tmp_path):
    # Without "[" and "<" in the vocabulary "[MASK]" would be one unknown piece, which transformers looks up by name.
    generator = random.Random(2)
    texts = ["".join(generator.choices("漢字日本語文学", k=6)) for _ in range(300)]
    tokenizer = train_tokenizer(texts, tmp_path, vocab_size=24)
    strings = ["[MASK]", "漢[CLS]字", "<pad>", "x[SEP]y", "<unk>"]
    ids = tokenizer(strings, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert ids == encode(tokenizer, strings)
    assert not {0, 2, 3, 4} & {index for row in ids for index in row}


def test_special_tokens_survive_two_rounds_of_save_and_load(tokenizer_folder, tmp_path):
    first = load_tokenizer(tokenizer_folder)
    save_tokenizer(first, tmp_path / "one")
    save_tokenizer(AutoTokenizer.from_pretrained(tmp_path / "one"), tmp_path / "two")
    for tokenizer in (load_tokenizer(tmp_path / "two"), AutoTokenizer.from_pretrained(tmp_path / "two")):
        assert tokenizer.convert_ids_to_tokens(tokenizer("river", "light")["input_ids"]) == (
            ["[CLS]", *tokenizer.tokenize("river"), "[SEP]", *tokenizer.tokenize("light"), "[SEP]"]
        )
        assert tokenizer.model_max_length == 128
        assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id) == (0, 1, 4)
        assert len(tokenizer) == 60
        # Only fill-mask input parses literals.
        assert 4 in tokenizer("river [MASK]")["input_ids"]
    for name in ("tokenizer.model", "tokenizer_config.json"):
        assert (tmp_path / "two" / name).read_bytes() == (tokenizer_folder / name).read_bytes()


def test_a_plain_save_is_repaired_when_loaded(tokenizer_folder, tmp_path):
    load_tokenizer(tokenizer_folder).save_pretrained(tmp_path)
    ids = load_tokenizer(tmp_path)("river")["input_ids"]
    assert (ids[0], ids[-1]) == (2, 3)


def test_saving_leaves_other_files(tokenizer_folder, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_tokenizer(load_tokenizer(tokenizer_folder), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json", "tokenizer.model", "tokenizer_config.json",
    ]  # fmt: skip


def test_what_a_kill_has_left_of_saving_is_removed(tokenizer_folder, tmp_path):
    tokenizer = load_tokenizer(tokenizer_folder)
    left = tmp_path / ".tokenizer-left"
    left.mkdir()
    # Moments of the kill: while the configuration is written, and before it is renamed.
    for name in (".tokenizer_config.json.7.tmp", ".tokenizer_config.json.7-1.tmp", "tokenizer_config.json"):
        (left / name).write_text("{")
    save_tokenizer(tokenizer, tmp_path)
    assert sha256_of_folder(tmp_path) == sha256_of_folder(tokenizer_folder)


def test_training_repeats_to_the_byte(known_texts, tokenizer_folder, tmp_path):
    train_tokenizer(known_texts, tmp_path, vocab_size=60, model_max_length=128)
    assert (tmp_path / "tokenizer.model").read_bytes() == (tokenizer_folder / "tokenizer.model").read_bytes()


def test_uncased_folds_case(known_texts, tmp_path, tokenizer_folder):
    uncased = train_tokenizer(known_texts, tmp_path, vocab_size=50, uncased=True)
    assert encode(uncased, ["STONE Über"]) == encode(uncased, ["stone über"])
    cased = load_tokenizer(tokenizer_folder)
    assert encode(cased, ["STONE Über"]) != encode(cased, ["stone über"])


def test_text_that_cannot_fill_the_vocabulary_names_a_size_that_works(known_texts, tmp_path):
    with pytest.raises(UserError, match="--vocab-size 32000") as caught:
        train_tokenizer(known_texts, tmp_path, vocab_size=32000)
    assert "\n" not in str(caught.value)
    limit = int(re.findall(r"--vocab-size (\d+)", str(caught.value))[-1])
    assert len(train_tokenizer(known_texts, tmp_path, vocab_size=limit)) == limit


def test_a_small_text_gets_a_small_vocabulary():
    sizes = (10**9, 1_800_000, 1_406_998, 10)
    assert [sensible_vocabulary(size) for size in sizes] == [32000, 5100, 4000, 300]
    assert sensible_vocabulary(10**9, 4000) == 4000


def test_a_size_that_was_given_makes_the_files_that_it_always_made(tokenizer_folder):
    """A model holds each setting that was given, the default ones too: such a file would be another one."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString((tokenizer_folder / "tokenizer.model").read_bytes())
    assert not model.trainer_spec.HasField("hard_vocab_limit")


def test_a_default_size_gives_way_to_the_text(known_texts, tmp_path):
    assert len(train_tokenizer(known_texts, tmp_path / "few", vocab_size=32000, is_about=True)) < 3000
    many = ["".join(chr(0x4E00 + index * 7 + offset) for index in range(150)) for offset in range(7)]
    assert len(train_tokenizer(many, tmp_path / "many", vocab_size=300, is_about=True)) > 1000


def test_vocabulary_smaller_than_the_alphabet_names_a_size_that_works(known_texts, tmp_path):
    with pytest.raises(UserError, match="characters of the text") as caught:
        train_tokenizer(known_texts, tmp_path, vocab_size=12)
    needed = int(str(caught.value).split("--vocab-size ")[-1].split()[0])
    assert len(train_tokenizer(known_texts, tmp_path, vocab_size=needed)) == needed


@pytest.mark.parametrize("texts", [[], ["", " \n\t"]])
def test_blank_text_is_the_users_mistake(tmp_path, texts):
    with pytest.raises(UserError, match="no text"):
        train_tokenizer(texts, tmp_path)


def test_folders_without_a_tokenizer(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"tokenizer_config\.json is missing"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match="JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(UserError, match="holds a list, expected a map"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "SentencePieceBackend"}')
    with pytest.raises(UserError, match="cannot be loaded"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("longest", ["128", None, [1], {"a": 1}, True, 0, -5, float("nan"), float("inf")])
def test_a_tokenizer_whose_length_is_no_number_is_refused(tokenizer_folder, tmp_path, longest):
    shutil.copytree(tokenizer_folder, tmp_path / "copy")
    path = tmp_path / "copy" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": longest}))
    if longest is None:  # as where it is not said: transformers takes any length
        assert load_tokenizer(tmp_path / "copy").model_max_length > 1e9
        return
    with pytest.raises(UserError, match=r"tokenizer_config\.json: model_max_length is .*, expected a number of tokens"):
        load_tokenizer(tmp_path / "copy")


def test_a_tokenizer_that_cannot_encode_is_told(tokenizer_folder, monkeypatch):
    tokenizer = load_tokenizer(tokenizer_folder)
    for method in ("_tokenize", "tokenize"):
        monkeypatch.setattr(tokenizer, method, lambda *_, **__: {}["\x1b[2J"], raising=False)
    with pytest.raises(UserError, match="cannot encode a text: KeyError") as caught:
        call(tokenizer, ["a river"])
    assert str(tokenizer_folder) in str(caught.value) and str(caught.value).isprintable()


def test_another_tokenizer_keeps_literals_as_text(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {name: index for index, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "river"])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip
    save_tokenizer(fast, tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert sentencepiece_processor(tokenizer) is None
    ids = encode(tokenizer, ["river [MASK]"])
    assert ids[0][0] == 5
    assert 4 not in ids[0]


@pytest.mark.parametrize(
    "text",
    [
        "the [MASK] of it",
        "[MASK] is [MASK].",
        "a[MASK]b c",
        "\u4eca\u5929[MASK]\u5f88\u597d [MASK]",
        "x[MASK]\u2603\u2603 y",
    ],
)
def test_what_follows_a_mask_without_a_space_goes_on_within_its_word(tokenizer_folder, text):
    """As in training, where a piece of a text is hidden, and those around it stand as they are, unknown ones too."""
    tokenizer = load_tokenizer(tokenizer_folder)
    ids = encode_masked(tokenizer, text)
    assert [ids[0], ids[-1]] == [tokenizer.cls_token_id, tokenizer.sep_token_id]
    # Between two masks nothing begins a word but what a space stands before.
    marks = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
    parts = text.split("[MASK]")[1:]
    assert len(marks) == len(parts)
    for place, end, part in zip(marks, [*marks[1:], len(ids) - 1], parts, strict=True):
        pieces = tokenizer.convert_ids_to_tokens(ids[place + 1 : end])
        begins = part.strip() != "" and part[0] == " "
        assert (bool(pieces) and pieces[0].startswith("\u2581")) == begins
        assert len(pieces) > 0 or not part.strip()
    apart = text.replace("[MASK]", " [MASK] ").strip()
    assert encode_masked(tokenizer, apart) == tokenizer(apart)["input_ids"]


def test_a_mask_within_a_word_of_a_vocabulary_of_all_bytes(tokenizer_folder, known_texts, tmp_path):
    """It knows every character by its bytes, so that none is unknown."""
    folder = shutil.copytree(tokenizer_folder, tmp_path / "bytes")
    with open(folder / "tokenizer.model", "wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(known_texts), model_writer=model, vocab_size=450, byte_fallback=True, pad_id=0,
            unk_id=1, bos_id=2, eos_id=3, pad_piece="<pad>", unk_piece="<unk>", bos_piece="[CLS]", eos_piece="[SEP]",
            control_symbols=["[MASK]"], minloglevel=2,
        )  # fmt: skip
    tokenizer = load_tokenizer(folder)
    pieces = tokenizer.convert_ids_to_tokens(encode_masked(tokenizer, "under[MASK]ing \u6f22[MASK]."))
    first, second = (place for place, piece in enumerate(pieces) if piece == "[MASK]")
    assert "".join(pieces[first + 1 : second]) == "ing\u2581<0xE6><0xBC><0xA2>" and pieces[second + 1 :] == [
        ".",
        "[SEP]",
    ]


def test_what_another_command_is_saving_is_not_taken_for_left_behind(tokenizer_folder, tmp_path):
    tokenizer, theirs = load_tokenizer(tokenizer_folder), tmp_path / ".tokenizer-of-another"
    theirs.mkdir()
    with folder_lock(tmp_path, fcntl.LOCK_EX):
        save_tokenizer(tokenizer, tmp_path)
    assert theirs.is_dir() and load_tokenizer(tmp_path)("river")["input_ids"] == tokenizer("river")["input_ids"]
    save_tokenizer(tokenizer, tmp_path)
    assert not theirs.exists()
