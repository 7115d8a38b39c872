"""NumPy's files from outside: numbers are read, everything else is one line, and nothing is unpickled."""

import pickle

import numpy as np
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.tasks.arrays import read_npy, read_npz


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_numbers_are_read(tmp_path):
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "a.npz", x=array, y=np.float32(2))
    assert (read_npy(tmp_path / "a.npy") == array).all()
    arrays = read_npz(tmp_path / "a.npz")
    assert set(arrays) == {"x", "y"} and (arrays["x"] == array).all() and arrays["y"] == 2


def test_nothing_is_unpickled(tmp_path):
    trap = np.array([Trap(tmp_path / "sprung")], dtype=object)
    np.save(tmp_path / "a.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "a.npz", trap, allow_pickle=True)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    for name in "ab":
        with pytest.raises(UserError, match=f"{name}.npy cannot be read as a .npy file"):
            read_npy(tmp_path / f"{name}.npy")
        with pytest.raises(UserError, match=f"{name}.npz cannot be read as a .npz file"):
            read_npz(tmp_path / f"{name}.npz")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("kept", [0, 1, 20, 100, 130])
def test_a_file_cut_short(tmp_path, kept):
    np.save(tmp_path / "a.npy", np.arange(100))
    np.savez(tmp_path / "a.npz", x=np.arange(100))
    for name, read in (("a.npy", read_npy), ("a.npz", read_npz)):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:kept])
        with pytest.raises(UserError, match="cannot be read"):
            read(tmp_path / name)


def test_a_header_that_promises_too_much(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(100))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(
        content.replace(b"(100,), }      ", b"(10**15,), }   ").replace(b"10**15", b"1" * 6)
    )
    with pytest.raises(UserError, match="cannot be read"):
        read_npy(tmp_path / "a.npy")


@pytest.mark.parametrize("read", [read_npy, read_npz])
def test_what_is_no_file(tmp_path, read):
    with pytest.raises(UserError, match="is no file"):
        read(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        read(tmp_path / "missing")


def test_one_kind_is_not_taken_for_the_other(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    with pytest.raises(UserError, match="cannot be read"):
        read_npz(tmp_path / "a.npy")
    with pytest.raises(UserError, match="cannot be read"):
        read_npy(tmp_path / "a.npz")
