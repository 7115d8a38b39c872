"""Held-out documents: which split has them, by text and by title."""

import hashlib
import random
import re
import unicodedata

import pytest

from longmix.data_prep.text import held_out
from longmix.data_prep.text.documents import parse_rule
from longmix.data_prep.text.held_out import SAME_TEXT, SAME_TITLE, HeldOut, Windows, _windows
from longmix.data_prep.text.reading import Reader
from longmix.data_prep.text.sources import find_sources


def held_out_of(**documents):
    made = HeldOut()
    for split in ("test", "validation"):
        for title, text in documents.get(split, []):
            made.add(split, f"{title or ''}{text}", title, 1)
    return made


def test_a_document_repeated_within_validation_does_not_stand_in_test():
    twice = [(None, "a song of the wren"), (None, "A song of the wren!"), ("= Loam =", "one"), ("= Loam =", "two")]
    assert held_out_of(test=[(None, "the tide")], validation=twice).validation_in_test == 0
    assert held_out_of(validation=twice).validation_in_test == 0


def test_documents_of_validation_that_stand_in_test_are_counted_each():
    test = [(None, "the tide"), ("= Moss =", "green")]
    # By its text, by its title, and by its text under a title that validation alone has.
    validation = [(None, "The Tide."), ("= Moss =", "wet"), ("= Loam =", "brown"), ("= Loam =", "green")]
    assert held_out_of(test=test, validation=validation).validation_in_test == 3


def test_what_either_split_holds_is_found():
    made = held_out_of(test=[("= Moss =", "green")], validation=[(None, "the tide")])
    assert made.find("green", None) == SAME_TEXT and made.find("the tide", None) == SAME_TEXT
    assert made.find("= Moss =red", "= Moss =") == SAME_TITLE
    assert made.find("red", None) is None and made.splits == {"test", "validation"}


def test_accents_as_characters_of_their_own_make_no_other_text():
    text = "déjà vu, un été à l'hôtel de la forêt où naît près d'ici le ruisseau léger et gelé"
    made = held_out_of(test=[(None, unicodedata.normalize("NFC", text))])
    other = unicodedata.normalize("NFD", text)
    assert other != text and made.find(other, None) == SAME_TEXT and made.windows().overlap(other) == 1


def words(first, count):
    return " ".join(f"w{number}" for number in range(first, first + count))


def test_passages_of_held_out_text_are_found_wherever_they_stand():
    """A passage of 25 words holds one of the training document's windows of 13, whatever stands before it."""
    made = held_out_of(test=[(None, words(0, 300))], validation=[(None, words(1000, 40))])
    for before in range(30):
        document = f"{words(5000, before)} {words(100 + before, 25)} {words(7000, 40)}"
        assert 0 < made.windows().overlap(document) < 0.5, before
    assert made.windows().overlap(words(1003, 37)) == 1.0  # of the validation split
    assert made.windows().overlap(words(50, 60).upper().replace(" ", " @-@ ")) == 1.0  # in other tokens
    assert made.windows().overlap(words(2000, 500)) == 0.0
    assert made.windows().overlap(words(0, 12)) == 0.0 and made.windows().overlap("") == 0.0  # shorter than a window
    changed = " ".join(word if number % 12 else "other" for number, word in enumerate(words(0, 300).split()))
    assert made.windows().overlap(changed) == 0.0  # one word in twelve is another: a limit that the help tells
    assert held_out_of(test=[(None, "short")]).windows().overlap(words(0, 100)) == 0.0


def test_equal_windows_give_equal_numbers_in_every_process():
    """The count stands in the manifest: it must not hang on Python's own hashes, which differ by process."""
    assert list(_windows("a b c d e f g h i j k l m", step=1)) == [7646352117198599578]


# Letters that change with those before or behind them, in other forms or cases; and what is no letter.
ODD = "éüßİıﬁ“”—…Ⅷ①²ªΣσςΏάй\u0301\u0308\u3099ё가힣각각中文。、かガｶﾞ\u200b\u00ad𝔘𝒳ǅŉ٣אבَ\u0653א\u1e9e"


def odd_texts(count, seed):
    """Few characters each, so that texts repeat; from one letter to many more than are looked at first."""
    generator = random.Random(seed)
    pool = "abXY 01.,-_@\n\t" + ODD
    for _ in range(count):
        characters = generator.sample(pool, generator.randint(2, len(pool)))
        yield "".join(generator.choices(characters, k=generator.randint(1, generator.choice((3, 40, 130, 400)))))


def test_words_and_letters_are_those_of_one_form_whatever_the_way_to_them():
    # The last letter that is looked at first is another with the accent behind it.
    at_the_cut = "." * 95 + "a" * 31 + "e\u0301" + " and more" * 20
    for text in (at_the_cut, *odd_texts(5000, seed=1)):
        form = unicodedata.normalize("NFKC", text).casefold()
        words = re.findall(r"[^\W_]+", form)
        assert [word.decode() for word in held_out._words(text)] == words
        windows = [" ".join(words[start : start + 13]).encode() for start in range(len(words) - 12)]
        numbers = [int.from_bytes(hashlib.blake2b(window, digest_size=8).digest(), "big") for window in windows]
        assert list(_windows(text, step=1)) == numbers and list(_windows(text, step=13)) == numbers[::13]
        head, letters = held_out._head(text, 0), "".join(words)
        assert head is None or head == letters[: held_out._HEAD_LETTERS]
        title, end = text[: len(text) // 2], len(text) // 2
        assert held_out_of(test=[(title, text[end:])]).find(text, title) == SAME_TITLE


def test_what_a_document_begins_with_leaves_out_no_other_and_none_too_few():
    """As all of them compared whole."""
    texts = [text for text in odd_texts(3000, seed=2) if text.strip()]
    texts += ["same beginning, " * 20 + str(number) for number in range(50)]
    made = held_out_of(test=[(None, text) for text in texts[::3]])
    whole = {held_out._key(text) for text in texts[::3]}
    found = [made.find(text, None) is not None for text in texts]
    assert found == [held_out._key(text) in whole for text in texts] and all(found[::3]) and not all(found)


@pytest.mark.full
def test_what_is_normalised_without_what_follows():
    """Every character before every one of those at which a text may be cut, or one of its kind."""
    cut = [chr(code) for code in range(0x110000) if held_out._begins_anew(chr(code))]
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    form = {character: unicodedata.normalize("NFKC", character) for character in characters}
    for second in "aeK0 \nかカ가각힣一中":
        assert second in cut
        for first in characters:
            assert unicodedata.normalize("NFKC", first + second) == form[first] + form[second]
    for first in "aeéかカᄀ가각ｶ中\u3099\u0301ﾞ":
        for second in cut:
            assert unicodedata.normalize("NFKC", first + second) == form[first] + form[second]


@pytest.mark.parametrize("ending", ["plain", "with “quotes” and é"])
def test_of_other_documents_only_the_beginning_is_looked_at(tmp_path, monkeypatch, ending):
    """By the process that reads, for which all others wait; passages are looked for in those others."""
    texts = [f"document {number} {words(number, 2000)} {ending}" for number in range(50)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    made = held_out_of(validation=[(None, texts[7]), (None, words(0, 500))])
    looked_at, one_form = [], held_out._in_one_form
    monkeypatch.setattr(held_out, "_in_one_form", lambda text: looked_at.append(len(text)) or one_form(text))
    assert len(list(Reader(find_sources([str(tmp_path / "a.txt")]), parse_rule(None), held_out=made))) == 49
    assert sum(looked_at) <= 50 * held_out._HEAD_CHARACTERS + len(texts[7])


def test_windows_are_the_same_from_their_file(tmp_path):
    made = held_out_of(test=[(None, words(0, 300))])
    made.windows().save(tmp_path / "windows")
    loaded = Windows.load(tmp_path / "windows")
    assert loaded.overlap(words(50, 60)) == 1.0 and loaded.overlap(words(1000, 60)) == 0.0
    half = f"{words(0, 13)} {words(1000, 13)}"
    assert loaded.figures(half) == {"overlapping_some": 1, "overlapping_most": 1}
    assert loaded.figures(f"{half} {words(2000, 13)}") == {"overlapping_some": 1, "overlapping_most": 0}
    HeldOut().windows().save(tmp_path / "windows")
    assert Windows.load(tmp_path / "windows").overlap(words(0, 100)) == 0.0
