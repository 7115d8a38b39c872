"""NumPy's files from outside: read without unpickling, and told in one line what is wrong with them."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from longmix.data_prep.errors import UserError, reason_of

_DAMAGES = (
    OSError,
    ValueError,
    EOFError,
    MemoryError,
    OverflowError,
    SyntaxError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npy(path: str | Path) -> np.ndarray:
    """The array of a .npy file, mapped from the disk.

    Raises:
        UserError: there is no such file, or it is no .npy file, is cut short, or holds Python objects.
    """
    _require_file(path)
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except _DAMAGES as error:
        raise UserError(f"{path} cannot be read as a .npy file: {reason_of(error)}; write it with numpy.save") from None


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of a .npz file, by name.

    Raises:
        UserError: there is no such file, or it is no .npz file, is damaged, or holds Python objects.
    """
    _require_file(path)
    try:
        with open(path, "rb") as stream:
            if not zipfile.is_zipfile(stream):
                raise ValueError("it is no archive")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as arrays:
                return {name: np.asarray(arrays[name]) for name in arrays.files}
    except _DAMAGES as error:
        raise UserError(
            f"{path} cannot be read as a .npz file: {reason_of(error)}; write it with numpy.savez"
        ) from None


def _require_file(path: str | Path) -> None:
    if not Path(path).is_file():
        kind = "is no file" if Path(path).exists() else "does not exist"
        raise UserError(f"{path} {kind}: correct the path")
