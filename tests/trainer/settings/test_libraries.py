"""Libraries of an extra that are not there, or are there and broken."""

import sys

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.settings.libraries import require_libraries


def test_what_is_missing_or_cannot_be_imported_is_told_in_one_line(tmp_path, monkeypatch):
    """A library whose own import fails, for want of a system's library or of another version, is a mistake, no bug."""
    (tmp_path / "broken_here.py").write_text("raise ImportError('libfoo.so.1:\\n no such file')")
    (tmp_path / "half_there.py").write_text("import not_there_at_all")
    (tmp_path / "wild.py").write_text("raise AttributeError('of another version')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "taken_away", None)
    require_libraries("this needs", ("json",), "extra")
    with pytest.raises(UserError) as refusal:
        require_libraries("this needs", ("json", "broken_here", "half_there", "wild", "taken_away"), "extra")
    assert str(refusal.value) == (
        "this needs taken_away, broken_here, which is installed and cannot be imported (libfoo.so.1: no such file), "
        "half_there, which is installed and cannot be imported (No module named 'not_there_at_all'), "
        "wild, which is installed and cannot be imported (of another version): pip install 'longmix[extra]'"
    )
