"""Held-out documents: which split has them, by text and by title."""

import unicodedata

from longmix.data_prep.text.held_out import SAME_TEXT, SAME_TITLE, HeldOut, _windows


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
    assert other != text and made.find(other, None) == SAME_TEXT and made.overlap(other) == 1


def words(first, count):
    return " ".join(f"w{number}" for number in range(first, first + count))


def test_passages_of_held_out_text_are_found_wherever_they_stand():
    """A passage of 25 words holds one of the training document's windows of 13, whatever stands before it."""
    made = held_out_of(test=[(None, words(0, 300))], validation=[(None, words(1000, 40))])
    for before in range(30):
        document = f"{words(5000, before)} {words(100 + before, 25)} {words(7000, 40)}"
        assert 0 < made.overlap(document) < 0.5, before
    assert made.overlap(words(1003, 37)) == 1.0  # of the validation split
    assert made.overlap(words(50, 60).upper().replace(" ", " @-@ ")) == 1.0  # in other tokens
    assert made.overlap(words(2000, 500)) == 0.0
    assert made.overlap(words(0, 12)) == 0.0 and made.overlap("") == 0.0  # shorter than a window
    changed = " ".join(word if number % 12 else "other" for number, word in enumerate(words(0, 300).split()))
    assert made.overlap(changed) == 0.0  # one word in twelve is another: a limit that the help tells
    assert held_out_of(test=[(None, "short")]).overlap(words(0, 100)) == 0.0


def test_equal_windows_give_equal_numbers_in_every_process():
    """The count stands in the manifest: it must not hang on Python's own hashes, which differ by process."""
    assert list(_windows("a b c d e f g h i j k l m", step=1)) == [7646352117198599578]
