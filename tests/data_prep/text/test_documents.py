"""Documents: where one ends and the next begins."""

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.text.documents import TITLE_RULE, Rule, parse_rule, split_documents

ARTICLES = """\
 
 = Robert Boulter = 

 An actor .
 Born here .

 = = Career = = 

 He played .
 = Not a title = 
 = = = 2000 = = = 

 Later .
 
 = E = mc2 = 
 
 A formula .
"""  # noqa: W291, W293 - as WikiText has it


def cut(text, documents=None, is_records=False):
    rule, found = split_documents(text if is_records else text.split("\n"), parse_rule(documents), is_records)
    return rule.name, list(found)


def test_wikitext_titles_are_detected_and_keep_articles_whole():
    name, found = cut(ARTICLES)
    assert name == TITLE_RULE.name
    assert [document.split("\n")[0] for document in found] == [" = Robert Boulter = ", " = E = mc2 = "]
    assert "Later ." in found[0] and "Not a title" in found[0]


def test_a_text_that_starts_inside_an_article_needs_two_titles():
    assert cut("some text\n\n = One = \n\nbody")[0] == "blank-line"
    name, found = cut("some text\n\n = One = \n\nbody\n\n = Two = \n\nbody")
    assert name == TITLE_RULE.name
    assert found == ["some text", " = One = \n\nbody", " = Two = \n\nbody"]


@pytest.mark.parametrize("line", [" = = Section = = ", "= Title =", " =  = ", " = x", " == Title == "])
def test_lines_that_are_no_titles(line):
    assert cut(f"{line}\n\nbody\n\n{line}\n\nbody")[0] == "blank-line"


def test_the_rules():
    text = "one\ntwo\n\n \nthree\n# four\n\nfive\n"
    assert cut(text) == ("blank-line", ["one\ntwo", "three\n# four", "five"])
    assert cut(text, "blank-line")[1] == ["one\ntwo", "three\n# four", "five"]
    assert cut(text, "record")[1] == text.split("\n")
    assert cut(text, "file")[1] == [text]
    assert cut(text, "heading:^# ") == ("heading:^# ", ["one\ntwo\n\n \nthree", "# four\n\nfive"])


def test_records_are_documents_unless_they_are_lines_of_articles():
    records = ["first\n\nwith a blank line", "", "second"]
    assert cut(records, is_records=True) == ("record", records)
    assert cut(records, "blank-line", is_records=True)[1] == ["first", "with a blank line", "second"]
    lines = [line + "\n" for line in ARTICLES.split("\n")]
    name, found = cut(lines, is_records=True)
    assert (name, len(found)) == (TITLE_RULE.name, 2)


def test_records_that_are_articles_with_their_titles_stay_apart():
    records = [f" = Article {number} = \n\nbody {number}\n" for number in range(3)]
    name, found = cut(records, is_records=True)
    assert name == TITLE_RULE.name
    assert found == [f" = Article {number} = \n\nbody {number}" for number in range(3)]
    # Of several records each; those that are no titled articles go on without a blank line that was not there.
    records = [" = A = \n\na", "more\na", " = = Part = = \n\na", " = B = \n\nb", "x\ny", " = 3 = ", "then\nmore"]
    assert cut(records, is_records=True)[1] == [
        " = A = \n\na\nmore\na\n = = Part = = \n\na",
        " = B = \n\nb\nx\ny\n = 3 = \nthen\nmore",
    ]


@pytest.mark.parametrize(
    "records",
    [
        ["one\nline", " = A = \n\na", "two\nline", " = B = \n\nb", "three"],
        [" = A = \n\n", "p1\nq1\n", "p2\nq2\n", " = B = \n\n", "r\n"],
    ],
)
def test_titles_among_other_records_are_no_rule(records):
    assert cut(records, is_records=True) == ("record", records)


def test_empty_input_has_no_documents():
    assert cut("")[1] == []
    assert cut("\n\n \n")[1] == []
    assert cut([], is_records=True)[1] == []


def test_only_the_start_is_looked_at_before_the_first_document():
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield "word " * 200 if taken % 3 else ""

    documents = split_documents(endless(), Rule("automatic"), is_records=False)[1]
    assert next(documents).startswith("word")
    assert taken * 1000 < 3_000_000


@pytest.mark.parametrize("text", ["paragraph", "heading:", "heading:(", ""])
def test_unknown_rules_are_refused(text):
    with pytest.raises(UserError, match="--documents"):
        parse_rule(text)
