"""Where kernels read and write in tensors of more than 2^31 elements, found without a GPU and without their memory.

Triton's interpreter runs one program of each launch, the last one of its grid, on addresses that nothing lies at: what
it would read or write is noted, and where sums, differences or products of integers leave their 32 bits. Kernels have
the blocks that they have on a card, not the small ones of the interpreter. In a process of its own, with
TRITON_INTERPRET=1, as Triton decides when it is imported: reads names of cases as JSON from stdin, and writes rows as
JSON to stdout. It replaces parts of Triton's interpreter; version 3.7 has them so.
"""

import inspect
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from gpu_model.far import FAR
from gpu_model.targets import targeted
from triton.runtime import interpreter

import longmix.kernels.common.interpreter as interpreted_or_not

# Storages lie so far apart that an offset which has wrapped around meets none.
APART = 44
# Of attentions whose heads are cut into pieces: more than on a card, so that a program has few rows.
PROGRAMS = 1 << 16
DOCUMENT = 40
# What integers a tensor of this name has, by their place in it and the kernel's arguments.
CONTENTS: dict[str, Callable[[np.ndarray, dict], np.ndarray]] = {
    "lengths": lambda place, given: np.full_like(place, given["positions" if "positions" in given else "count"]),
    "ids": lambda place, given: place // DOCUMENT,
    "counts": lambda place, given: np.full_like(place, given["positions"]),
    # Of a random feature's places the tokens, of each place one of every sample; of links the documents' first rows.
    "starts": lambda place, given: place * given.get("samples", 0),
    "order": lambda place, given: place % given["samples"] * given["places"] + place // given["samples"],
    "from_rows": lambda place, given: place % given["positions"],
    "to_rows": lambda place, given: place % given["positions"],
    # Rows of the causal step that ends here.
    "sizes": lambda place, given: place % given["ROWS"] + 1,
}


@dataclass(frozen=True)
class Place:
    """A tensor as the interpreter takes it, at an address of our own."""

    dtype: torch.dtype
    address: int

    def data_ptr(self) -> int:
        """Its first element's address."""
        return self.address


@dataclass
class Accesses:
    """What one program reads and writes. By the number of a storage: the bytes that it has, the last element of a
    tensor there, the name of the first such argument, and the furthest element; what it reached outside of them, and
    lines whose integers wrapped around.
    """

    given: dict
    numbers: dict[int, int] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    furthest: dict[int, int] = field(default_factory=dict)
    outside: dict[str, int] = field(default_factory=dict)
    wrapped: set[str] = field(default_factory=set)

    def placed(self, name: str, tensor: object) -> object:
        """An argument, whose tensors have addresses."""
        if isinstance(tensor, tuple):
            parts = [self.placed(f"{name}[{index}]", value) for index, value in enumerate(tensor)]
            return interpreter._tuple_create(tensor, parts)
        if not isinstance(tensor, torch.Tensor):
            return tensor
        storage = tensor.untyped_storage()
        number = self.numbers.setdefault(storage._cdata, len(self.numbers) + 1)
        self.bytes[number], self.names[number] = storage.nbytes(), self.names.get(number, name)
        steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        self.last[number] = max(self.last.get(number, 0), tensor.storage_offset() + sum(steps))
        return Place(tensor.dtype, (number << APART) + tensor.storage_offset() * tensor.element_size())

    def note(self, addresses: np.ndarray, mask: np.ndarray, size: int) -> None:
        """Elements of so many bytes are read or written."""
        found = addresses[np.broadcast_to(mask, addresses.shape).astype(bool)].astype(np.int64)
        for number in np.unique(found >> APART):
            offsets = found[found >> APART == number] - (number << APART)
            if offsets.max() + size > self.bytes.get(number, 0):
                self.outside[self.names.get(number, "in front of all")] = int(offsets.max())
            self.furthest[number] = max(self.furthest.get(number, 0), int(offsets.max()) // size)

    def integers(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """What is read there; 0 of tensors whose contents no address follows from."""
        number = int(addresses.flat[0]) >> APART
        content = CONTENTS.get(self.names.get(number, ""), lambda place, given: np.zeros_like(place))
        return content((addresses.astype(np.int64) - (number << APART)) // size, self.given)


@dataclass
class _Probe:
    """Parts of Triton's interpreter that note in place of reading and writing."""

    accesses: Accesses | None = None

    def load(self, builder, addresses, mask, *others):
        """Reads zeros, and integers from CONTENTS."""
        element = addresses.get_element_ty()
        size, kind = element.primitive_bitwidth // 8, interpreter._get_np_dtype(element)
        self.accesses.note(addresses.data, mask.data, size)
        if element.is_int():
            found = self.accesses.integers(addresses.data, size).astype(kind)
        else:
            found = np.zeros(addresses.data.shape, kind)
        return interpreter.TensorHandle(found, element)

    def store(self, builder, addresses, value, mask, *others):
        """Writes nothing."""
        self.accesses.note(addresses.data, mask.data, addresses.get_element_ty().primitive_bitwidth // 8)

    def computed(self, name, builder, left, right):
        """The sum, difference or product, as numpy calls it; noted where 32 bits do not hold it."""
        function = getattr(np, name)
        result = function(left.data, right.data)
        if left.data.dtype == right.data.dtype == np.int32:
            exact = function(left.data.astype(np.int64), right.data.astype(np.int64))
            if (exact != result).any():
                frames = (frame for frame in traceback.extract_stack() if "/kernels/" in frame.filename)
                self.accesses.wrapped.add(" ".join(f"{frame.name}:{frame.lineno}" for frame in frames))
        return interpreter.TensorHandle(result, left.dtype.scalar)

    def assembly(self, builder, text, constraints, operands, *others):
        """Instructions that round a number, which the interpreter does not have."""
        return SimpleNamespace(get_result=lambda index: operands[index])


def last_programs(call: Callable[[torch.dtype], None]) -> list[tuple[str, Accesses]]:
    """The kernels that a call on meta tensors launches, with what the last program of each grid accesses."""
    probe, found = _Probe(), []
    builder, kind = interpreter.interpreter_builder, type(interpreter.interpreter_builder)

    def run(function, *arguments, grid, warmup, **options):
        taken = {name: value for name, value in options.items() if name in function.arg_names}
        given = inspect.getcallargs(function.fn, *arguments, **taken)
        probe.accesses = Accesses(given)
        executor = interpreter.GridExecutor(function.rewrite(), function.arg_names, grid)
        programs = (*grid, 1, 1)[:3]
        builder.set_grid_dim(*programs)
        builder.set_grid_idx(*(count - 1 for count in programs))
        scope = interpreter._patch_lang(executor.fn)
        try:
            executor.fn(
                **{
                    name: value
                    if name in executor.constexprs
                    else interpreter._implicit_cvt(probe.accesses.placed(name, value))
                    for name, value in given.items()
                }
            )
        finally:
            scope.restore()
        found.append((function.__name__, probe.accesses))

    with (
        mock.patch.object(interpreter.InterpretedFunction, "run", run),
        mock.patch.object(kind, "create_masked_load", lambda *given: probe.load(*given)),
        mock.patch.object(kind, "create_masked_store", lambda *given: probe.store(*given)),
        mock.patch.object(kind, "create_inline_asm", lambda *given: probe.assembly(*given)),
        mock.patch.object(kind, "create_add", lambda *given: probe.computed("add", *given)),
        mock.patch.object(kind, "create_sub", lambda *given: probe.computed("subtract", *given)),
        mock.patch.object(kind, "create_mul", lambda *given: probe.computed("multiply", *given)),
    ):
        call(torch.float16)
    return found


def main() -> None:
    """Answer for some cases."""
    rows = []
    with targeted(80), mock.patch.object(interpreted_or_not, "interpreted", lambda: False):
        from longmix.kernels.attention import pieces

        pieces.PROGRAMS = PROGRAMS
        for case in json.load(sys.stdin):
            for name, accesses in last_programs(FAR[case].call):
                reached = {
                    accesses.names[number]: (accesses.furthest.get(number), accesses.last[number])
                    for number in accesses.names
                }
                row = {"case": case, "name": name, "reached": reached, "outside": accesses.outside}
                rows.append({**row, "wrapped": sorted(accesses.wrapped)})
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
