"""Run files, and the mistakes in them."""

import textwrap

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.models.field_check import field_mistakes
from longmix.trainer.settings import reading


@pytest.fixture
def write(tmp_path):
    """write(name, YAML text) -> path."""

    def make(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return str(path)

    return make


@pytest.fixture
def small(write):
    return write("small.yaml", "run: {dir: runs/a}\nmodel: {model_type: transformer}\ndata: {train: d/train}\n")


@pytest.fixture(scope="session")
def mistakes_of():
    """mistakes_of(path or paths of run files, *changes) -> the one line that tells what is wrong."""

    def read(paths, *overrides):
        with pytest.raises(UserError) as caught:
            reading.load(paths if isinstance(paths, list) else [paths], list(overrides), field_mistakes)
        text = str(caught.value)
        assert "\n" not in text
        return text

    return read
