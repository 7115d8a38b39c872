"""Files of text, compressed or not, as the bytes of the text. What a file is compressed with follows from its first
bytes, never from its name.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from longmix.data_prep.errors import UserError, reason_of, refused
from longmix.kernels.common.safe_files import open_input

# Endings of names that compressing adds: what a file holds is told by the name before them.
ENDINGS = (".gz", ".zst", ".zstd", ".bz2", ".xz")
_BUFFER_BYTES = 1 << 18
_LONGEST_SIGN = 10
LEAVE_OUT = "or leave it out: give the files that are wanted, each with --source"


def _open_zstd(file: BinaryIO) -> Any:
    import pyarrow as pa  # here: the options of the command need no library

    return pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")


def _xz_stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ)


class _Streams(io.RawIOBase):
    """The streams of a file one after the other, as bzip2 and xz unpack them, with `padding` between and behind them.

    What else is there has to be a stream, too: Python's own files take damaged ones, but for the first, for the end.
    """

    def __init__(self, file: BinaryIO, decompressor: Callable[[], Any], padding: bytes = b""):
        self._file, self._decompressor, self._padding = file, decompressor, padding
        self._stream = decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        unpacked = b""
        while not unpacked:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data.lstrip(self._padding)
                while not packed:
                    piece = self._file.read(_BUFFER_BYTES)
                    if not piece:
                        return 0
                    packed = piece.lstrip(self._padding)
                self._stream = self._decompressor()
            elif self._stream.needs_input:
                packed = self._file.read(_BUFFER_BYTES)
                if not packed:
                    raise EOFError("it ends within a stream")
            unpacked = self._stream.decompress(packed, len(buffer))
        buffer[: len(unpacked)] = unpacked
        return len(unpacked)


# Name, first bytes, opener. A file of zstd may begin with a frame to be skipped, as that of pzstd does.
_FORMS: tuple[tuple[str, re.Pattern[bytes], Callable[[BinaryIO], Any]], ...] = (
    ("gzip", re.compile(rb"\x1f\x8b"), lambda file: gzip.GzipFile(fileobj=file)),
    ("zstd", re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), _open_zstd),
    ("xz", re.compile(rb"\xfd7zXZ\x00"), lambda file: _Streams(file, _xz_stream, b"\0")),
    (
        "bzip2",
        re.compile(rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)"),
        lambda file: _Streams(file, bz2.BZ2Decompressor),
    ),
)


# The first bytes of each form, one for each length: what a file that ends within them would have gone on with.
_SIGNS = (
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b"\x50\x2a\x4d\x18",
    b"\xfd7zXZ\x00",
    b"BZh11AY&SY",
    b"BZh1\x17\x72\x45\x38\x50\x90",
)


@contextlib.contextmanager
def opened(path: Path, advice: str = f"get it anew, {LEAVE_OUT}") -> Iterator[tuple[BinaryIO, str | None]]:
    """The text of a file, to be read a piece at a time, and what the file is compressed with, if it is.

    However much a file unpacks to, no more than is asked for is held, but for a buffer. `advice`: what to do about a
    damaged file.

    Raises:
        UserError: the file is damaged, or cannot be read; also while its text is read within the context.
        MachineFault: the machine fails to read it.
    """
    form = None
    try:
        with open_input(path) as file:
            form = _form_of(file)
            if form is None:
                _refuse_cut_sign(path, file, advice)
                yield file, None
                return
            with form[2](file) as unpacked, io.BufferedReader(unpacked, _BUFFER_BYTES) as stream:
                if _form_of(stream) is not None:
                    raise UserError(f"{path} is compressed twice: unpack it once")
                yield stream, form[0]
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise _damaged(path, form, error, advice) from None
    except OSError as error:
        # The libraries' own errors of the system have no number.
        if form is not None and error.errno is None:
            raise _damaged(path, form, error, advice) from None
        raise refused(f"{path} cannot be read", error) from None


def unpacked_name(path: Path) -> Path:
    """The name of a file before it was compressed, by the ending that compressing adds; else its own."""
    return path.with_suffix("") if path.suffix.lower() in ENDINGS else path


def _form_of(file: BinaryIO) -> tuple[str, re.Pattern[bytes], Callable[[BinaryIO], Any]] | None:
    """The row of _FORMS that a file's first bytes fit; the file stays at its beginning."""
    return _form_with(file.peek(_LONGEST_SIGN)[:_LONGEST_SIGN])


def _form_with(head: bytes) -> tuple[str, re.Pattern[bytes], Callable[[BinaryIO], Any]] | None:
    return next((form for form in _FORMS if form[1].match(head)), None)


def _refuse_cut_sign(path: Path, file: BinaryIO, advice: str) -> None:
    """Raise UserError if a file is called compressed and ends within the first bytes of one: it is no text."""
    head = file.peek(_LONGEST_SIGN)[:_LONGEST_SIGN]
    if not head or path.suffix.lower() not in ENDINGS:
        return
    for sign in _SIGNS:
        form = _form_with(head + sign[len(head) :])
        if len(head) < len(sign) and form is not None:
            raise UserError(
                f"{path}, compressed with {form[0]}, is cut short (of the bytes that such a file begins with it has "
                f"{len(head)}): {advice}"
            )


def _damaged(path: Path, form: Any, error: Exception, advice: str) -> UserError:
    reason = reason_of(error)
    if "requires too much memory" in reason:  # zstd --long=28 and more
        return UserError(
            f"{path} was compressed with a window of more than 128 MiB: unpack it first (zstd -d --long=31)"
        )
    return UserError(f"{path}, compressed with {form[0]}, is damaged or cut short ({reason}): {advice}")
