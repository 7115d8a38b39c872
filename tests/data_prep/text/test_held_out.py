"""Held-out documents: which split has them, by text and by title."""

from longmix.data_prep.text.held_out import SAME_TEXT, SAME_TITLE, HeldOut


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
