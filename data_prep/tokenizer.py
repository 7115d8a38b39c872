"""SentencePiece unigram tokenizers behind transformers' own class: training, saving, loading, encoding."""

import contextlib
import fcntl
import hashlib
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, reason_of, refused
from longmix.data_prep.files import MARKER, flush_to_disk, folder_lock, make_folder, sha256_of_file, write_json
from longmix.data_prep.made_files import remove_files
from longmix.kernels.common.safe_files import open_input, read_input

PAD, UNKNOWN, CLS, SEP, MASK = "<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"
SMALLEST_VOCABULARY = 9  # the special tokens, the word mark, the two required characters, and one of text
LARGEST_VOCABULARY = 1_000_000
DEFAULT_VOCABULARY = 32000
_FEWEST_PIECES = 300  # of a default
_BYTES_PER_PIECE = 350  # the rarest pieces of English text then stand in it about ten times
_CHARACTERS_NEED = re.compile(r"smaller than required_chars[^0-9]*(\d+) vs (\d+)")
CONFIGURATION = "tokenizer_config.json"
MODEL = "tokenizer.model"
# The names of what any tokenizer is saved as.
TOKENIZER_FILES = re.compile(
    r"(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json"
    r"|(tokenizer|spiece|sentencepiece\.bpe)\.model|(vocab|merges)\.txt|chat_template\.jinja"
)
# Also as what they are written before they are renamed.
_UNFINISHED_FILES = re.compile(rf"{TOKENIZER_FILES.pattern}|\.({TOKENIZER_FILES.pattern})\.\d+(-\d+)?\.tmp")
_LARGEST_FILE = 2**30

# The sums of SentencePiece's EM steps depend on the number of threads, not on the number of cores: one fixed number.
_TRAINING_THREADS = 8
_LINE_CHARACTERS = 1000  # SentencePiece leaves out lines of more than 4192 bytes


# -----------------------------------------------------------------------------
# Training: the same text must give the same files on every machine.


def train_tokenizer(
    texts: Sequence[str],
    folder: str | Path,
    vocab_size: int = DEFAULT_VOCABULARY,
    uncased: bool = False,
    model_max_length: int = 512,
    is_about: bool = False,
) -> Any:
    """Train a SentencePiece unigram model on `texts`, save it to `folder` and return the loaded tokenizer.

    The same texts in the same order give the same files. `<pad>`, `<unk>`, `[CLS]`, `[SEP]`, `[MASK]` have the ids 0
    to 4. Raises `UserError` if the texts cannot fill `vocab_size`, or if their characters alone need more; with
    `is_about` there are fewer pieces then, or more.
    """
    import sentencepiece

    check_vocab_size(vocab_size)
    model = io.BytesIO()
    fed = 0  # bytes

    def lines() -> Iterator[str]:
        nonlocal fed
        for line in _lines(texts):
            fed += len(line.encode())
            yield line

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            # Left out where it is the default: models hold every setting that was given.
            **({"hard_vocab_limit": False} if is_about else {}),
            normalization_rule_name="nmt_nfkc_cf" if uncased else "nmt_nfkc",
            num_threads=_TRAINING_THREADS,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece=PAD,
            unk_piece=UNKNOWN,
            bos_piece=CLS,
            eos_piece=SEP,
            # A control symbol: never found in text, so a literal "[MASK]" stays ordinary text.
            control_symbols=[MASK],
            # Runs of unknown characters become one piece: without these two it could spell a special token.
            required_chars="[<",
            minloglevel=2,
        )
    except RuntimeError as error:
        if is_about and (needed := _CHARACTERS_NEED.search(str(error))):
            more = int(needed[2]) + _FEWEST_PIECES
            return train_tokenizer(texts, folder, more, uncased, model_max_length, is_about)
        raise _explain(str(error), vocab_size, sensible_vocabulary(fed)) from None
    from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

    folder = Path(folder)
    make_folder(folder)
    # Below `folder`, so that what a killed process leaves there is found.
    remove_unfinished(folder)
    with tempfile.TemporaryDirectory(prefix=".training-", dir=folder) as temporary:
        path = Path(temporary) / MODEL
        path.write_bytes(model.getvalue())
        tokenizer = SentencePieceBackend(
            vocab_file=str(path),
            pad_token=PAD,
            unk_token=UNKNOWN,
            cls_token=CLS,
            sep_token=SEP,
            mask_token=MASK,
            special_tokens_pattern="cls_sep",
            token_type_ids_pattern="bert_style",
            model_max_length=model_max_length,
        )
        save_tokenizer(tokenizer, folder)
    return load_tokenizer(folder)


def sensible_vocabulary(size: int, largest: int = DEFAULT_VOCABULARY) -> int:
    """Pieces of a tokenizer for `size` bytes of text: `largest`, fewer for a small text, in hundreds.

    SentencePiece could find four times as many in a small one, which stand in it twice: nothing is learned of those.
    """
    return min(largest, max(_FEWEST_PIECES, size // _BYTES_PER_PIECE // 100 * 100))


def check_vocab_size(vocab_size: int) -> None:
    """Raise `UserError` for a vocabulary size that no text can have."""
    if not SMALLEST_VOCABULARY <= vocab_size <= LARGEST_VOCABULARY:
        raise UserError(f"--vocab-size is {vocab_size}: allowed are {SMALLEST_VOCABULARY} to {LARGEST_VOCABULARY}")


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Non-empty lines of at most _LINE_CHARACTERS, cut at a space where there is one."""
    for text in texts:
        for line in text.split("\n"):
            rest = line.replace("\0", " ").strip()
            while len(rest) > _LINE_CHARACTERS:
                cut = rest.rfind(" ", 1, _LINE_CHARACTERS + 1)
                cut = cut if cut > 0 else _LINE_CHARACTERS
                yield rest[:cut]
                rest = rest[cut:].lstrip()
            if rest:
                yield rest


def _explain(message: str, vocab_size: int, suits: int) -> Exception:
    """SentencePiece's complaint as one line with a vocabulary size that is possible and `suits` the text."""
    if limit := re.search(r"Vocabulary size too high .*?value <= (\d+)", message, re.DOTALL):
        return UserError(
            f"the text is too small for --vocab-size {vocab_size}: it can fill at most {limit[1]}, most of them with "
            f"pieces that stand there twice; give more text, or --vocab-size {min(suits, int(limit[1]))}, or "
            "leave it out"
        )
    if needed := _CHARACTERS_NEED.search(message):
        return UserError(
            f"--vocab-size {vocab_size} is too small: the characters of the text alone need {needed[2]}; "
            f"give --vocab-size {needed[2]} or more"
        )
    if "sentences_.empty()" in message:
        return UserError("no text to train a tokenizer on: every document of the sources is blank")
    return RuntimeError(f"SentencePiece could not train the tokenizer: {message}")


# -----------------------------------------------------------------------------
# Saving and loading: transformers forgets a setting on the way, and could be made to run code.


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes have left of a tokenizer in `folder`: it would be taken for a part of one."""
    for left in (*folder.glob(".training-*"), *folder.glob(".tokenizer-*")):
        remove_files(left, _UNFINISHED_FILES)


def save_tokenizer(tokenizer: Any, folder: str | Path) -> None:
    """Save any tokenizer to `folder`; other files in it stay. Every tokenizer of ours is saved here.

    transformers leaves `special_tokens_pattern` out of what it saves: after a reload [CLS] and [SEP] would silently
    vanish. It is written here, with `token_type_ids_pattern` and `model_max_length`.
    """
    folder = Path(folder)
    make_folder(folder)
    with contextlib.ExitStack() as stack:
        # Another command may be saving the same one here: what it makes is not left behind.
        if stack.enter_context(folder_lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)):
            remove_unfinished(folder)
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix=".tokenizer-", dir=folder))
        tokenizer.save_pretrained(temporary)
        path = Path(temporary) / CONFIGURATION
        values = json.loads(path.read_text(encoding="utf-8"))
        for name in ("special_tokens_pattern", "token_type_ids_pattern", "model_max_length"):
            if getattr(tokenizer, name, None) is not None:
                values[name] = getattr(tokenizer, name)
        for name in ("is_local", "local_files_only"):  # how it was loaded, not what it is
            values.pop(name, None)
        write_json(path, values)
        # The configuration last: a folder without it is no tokenizer.
        for source in sorted(Path(temporary).iterdir(), key=lambda item: (item.name == CONFIGURATION, item.name)):
            flush_to_disk(source)
            os.replace(source, folder / source.name)
    flush_to_disk(folder)


def load_tokenizer(folder: str | Path) -> Any:
    """Load the tokenizer saved in `folder`; nothing is fetched and no code of others is run.

    Raises `UserError` if `folder` holds no tokenizer, or one that transformers cannot read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"tokenizer folder {folder} does not exist: give a folder that holds {CONFIGURATION}")
    try:
        values = json.loads(read_input(folder / CONFIGURATION, _LARGEST_FILE))
        for path in filter(lambda path: TOKENIZER_FILES.fullmatch(path.name), folder.iterdir()):
            _refuse_unreadable(path)
    except FileNotFoundError:
        raise UserError(f"{folder} holds no tokenizer: {CONFIGURATION} is missing") from None
    except OSError as error:
        raise refused(f"{folder / CONFIGURATION} cannot be read", error) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{folder / CONFIGURATION} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(
            f"{folder / CONFIGURATION} holds a {type(values).__name__}, expected a map: save the tokenizer again"
        )
    try:
        if values.get("tokenizer_class") != "SentencePieceBackend":
            from transformers import AutoTokenizer

            # False: left open, transformers would ask on the terminal whether to run code from the folder.
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        else:
            # Not through AutoTokenizer: that one imports torch.
            from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

            tokenizer = SentencePieceBackend.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever the libraries stumble over comes from these files
        reason = f"{type(error).__name__}: {reason_of(error)}"
        raise UserError(f"the tokenizer in {folder} cannot be loaded: {reason}") from None
    longest = tokenizer.model_max_length
    if type(longest) not in (int, float) or not 0 < longest < math.inf:
        raise UserError(
            f"{folder / CONFIGURATION}: model_max_length is {repr(longest)[:40]}, expected a number of tokens above 0"
        )
    is_ours = values.get("tokenizer_class") == "SentencePieceBackend"
    if is_ours and tokenizer.special_tokens_pattern is None and tokenizer.cls_token and tokenizer.sep_token:
        tokenizer.special_tokens_pattern = "cls_sep"  # saved by something else than save_tokenizer
    return tokenizer


def _refuse_unreadable(path: Path) -> None:
    """Raise `UserError` for a file that the libraries would read as if it were not there, or that fills the memory."""
    try:
        with open_input(path) as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise refused(f"{path} cannot be read", error) from None
    if size > _LARGEST_FILE:
        raise UserError(f"{path} has {size:,} bytes, and no tokenizer needs {_LARGEST_FILE:,}: copy it again")


def sha256_of_tokenizer(folder: str | Path) -> str:
    """Hexadecimal SHA-256 over the tokenizer's files in `folder`, which may be a model's, whose own are left out."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).glob("*")):
        is_model = path.name in ("config.json", "generation_config.json", MARKER) or path.name.endswith(".index.json")
        if path.suffix in (".json", ".txt", ".model") and not is_model:
            digest.update(f"{path.name}\0{sha256_of_file(path)}\n".encode())
    return digest.hexdigest()


# -----------------------------------------------------------------------------
# Using a tokenizer: its ids, never those of special tokens that are spelled out in a text.


def encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, without special tokens; "[MASK]" and its like in the text are ordinary text."""
    if not texts:
        return []
    if (processor := sentencepiece_processor(tokenizer)) is not None:
        return processor.encode(list(texts), num_threads=1)
    return call(
        tokenizer,
        list(texts),
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )["input_ids"]


def call(tokenizer: Any, *texts: Any, **options: Any) -> Any:
    """The result of calling a tokenizer. Raises `UserError` for one that was loaded, and cannot encode."""
    try:
        return tokenizer(*texts, **options)
    except Exception as error:  # whatever the libraries stumble over comes from its files
        reason = f"{type(error).__name__}: {reason_of(error)}"
        raise UserError(f"the tokenizer of {tokenizer.name_or_path} cannot encode a text: {reason}") from None


def frames_texts(tokenizer: Any) -> bool:
    """Whether a call of the tokenizer puts its `cls` before a text and its `sep` behind it, as packing does."""
    ids = call(tokenizer, "a", verbose=False)["input_ids"]
    return [*ids[:1], *ids[-1:]] == [tokenizer.cls_token_id, tokenizer.sep_token_id]


def encode_masked(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text in which the mask token stands for pieces, special tokens around them.

    They are those of a call, but that behind a mask without a space the word goes on, as it does in training, where
    SentencePiece, which is handed the parts between masks, begins another one.
    """
    processor = sentencepiece_processor(tokenizer)
    first, *others = text.split(tokenizer.mask_token)
    if processor is None or not any(part and not part[0].isspace() for part in others):
        return call(tokenizer, text, verbose=False)["input_ids"]
    ids = processor.encode(first)
    for part in others:
        goes_on = part and not part[0].isspace()
        ids += [tokenizer.mask_token_id, *(_within_a_word(processor, part) if goes_on else processor.encode(part))]
    return [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]


def _within_a_word(processor: Any, text: str) -> list[int]:
    """Ids of a text's pieces, of which the first begins no word: those behind a character that no vocabulary has."""
    unknown = "\ue000"
    pieces = processor.encode(unknown + text, out_type=str)
    place = next((number for number, piece in enumerate(pieces) if unknown in piece), None)
    if place is None:  # a vocabulary of all bytes has no unknown character: those of this one come first
        return [processor.piece_to_id(piece) for piece in pieces[len(processor.encode(unknown)) :]]
    # Other characters that the vocabulary lacks are of the same piece.
    rest = pieces[place].partition(unknown)[2]
    return [*([processor.unk_id()] if rest else []), *(processor.piece_to_id(piece) for piece in pieces[place + 1 :])]


def sentencepiece_processor(tokenizer: Any) -> Any:
    """The SentencePiece processor whose ids are exactly the tokenizer's, or None: it encodes batches far faster."""
    plain = type(tokenizer).__name__ == "SentencePieceBackend" and tokenizer.legacy
    in_model = plain and len(tokenizer) == tokenizer.sp_model.get_piece_size()
    return tokenizer.sp_model if in_model else None


def required_ids(tokenizer: Any, folder: str | Path) -> dict[str, int]:
    """The ids of the `pad`, `cls`, `sep` and `mask` tokens. Raises `UserError` if the tokenizer lacks one."""
    names = ("pad", "cls", "sep", "mask")
    missing = [f"{name}_token" for name in names if getattr(tokenizer, f"{name}_token", None) is None]
    if missing:
        raise UserError(f"the tokenizer in {folder} has no {', '.join(missing)}: packing and masking need all four")
    return {name: getattr(tokenizer, f"{name}_token_id") for name in names}
