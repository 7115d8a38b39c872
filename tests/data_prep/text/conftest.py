"""A corpus of text, the settings with which it is prepared, and the documents in packed rows."""

import pytest

from longmix.data_prep.text.state import TextSettings


@pytest.fixture(scope="session")
def corpus(make_documents, tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n\n".join(make_documents(600)))
    return path


@pytest.fixture(scope="session")
def settings():
    """settings(source, ..., **options): of a small vocabulary and short samples."""

    def make(*sources, **options):
        options = {"vocab_size": 100, "sequence_length": 32, **options}
        return TextSettings(source=tuple(map(str, sources)), **options)

    return make


@pytest.fixture(scope="session")
def documents_of():
    """documents_of(rows, special) -> token ids of the documents, read back from packed rows."""

    def read(rows, special):
        found, current = [], []
        for row in rows:
            assert row["input_ids"][0] == special["cls"]
            for token in row["input_ids"][1:]:
                if token == special["sep"]:
                    found.append(current)
                    current = []
                else:
                    current.append(token)
        assert not current
        return found

    return read
