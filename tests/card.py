"""A stand-in for a GPU: tensors on "cuda" that a CPU computes, which refuse what a GPU refuses, and a record of it.

Code under test sees a device of type cuda, and autograd and autocast treat it as one (FakeTensorMode of torch does this
too, in builds for CUDA alone, and knows no values; here `nonzero` has a result). What this shows: devices, dtypes, and
where the host waits. What it does not: speed, memory, and the arithmetic of a GPU's kernels.
"""

import contextlib
import functools
import sys
import warnings
from pathlib import Path

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from longmix.kernels import ops

# As frames name it: the package may be a link, or a copy.
PACKAGE = Path(ops.__file__).parent.parent
HALVES = (torch.bfloat16, torch.float16)
CUDA, HOST = torch.device("cuda", 0), torch.device("cpu")


def _names(text: str) -> set[str]:
    return set(text.split())


# What loses its meaning in 16 bits: its results are fp32 or wider. Not layer norms: their kernels add up in fp32.
WIDE = _names(
    "exp exp2 expm1 log log1p log2 logsumexp cumsum cumprod logcumsumexp rsqrt erfinv _fft_r2c _fft_c2r _fft_c2c "
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax "
    "linalg_vector_norm norm var var_mean std prod "
    "nll_loss_forward mse_loss binary_cross_entropy_with_logits l1_loss smooth_l1_loss"
)
# These in forward passes: autograd itself adds up the gradient of a bias in the bias' dtype.
WIDE_FORWARD = {"sum", "mean", "sin", "cos"}
# Calls whose result has a size or a value that the host must know.
WAITS = _names(
    "_local_scalar_dense nonzero masked_select equal is_nonzero _unique2 unique_dim unique_consecutive bincount"
)
# Calls that wait where an index is a mask.
INDEXED = {"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put"}
# Calls that torch has for CPUs in bf16, and for GPUs not (2.11).
NOT_IN_BF16 = {"_embedding_bag_per_sample_weights_backward"}
# Calls that take no number of the host's beside tensors on the card.
STRICT = {"cat", "stack"}


class CardTensor(torch.Tensor):
    """A tensor that says it is on cuda:0; `inner` holds its values."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        # To torch's own C++ it is on "meta", for a build without CUDA can differentiate nothing else; the rules of
        # autocast are those of CUDA.
        outer = torch.empty_strided(inner.shape, inner.stride(), dtype=inner.dtype, device="meta")
        return torch.Tensor._make_subclass(cls, outer, device_for_backend_keys=CUDA)

    def __init__(self, inner: torch.Tensor):
        self.inner = inner

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    def __repr__(self, **options) -> str:
        return f"CardTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented  # the mode's part


class Card(TorchDispatchMode):
    """While it is entered, "cuda" is the stand-in.

    Attributes:
        waits: for each time that the host waits for the card: the call and the line of longmix that makes it.
        narrow: likewise for each result in 16 bits of what must be computed in fp32 (`WIDE`).
        made_on_host: likewise for each tensor that begins on the host.

    Raises:
        DevicesMixed: by any call of tensors on the card with tensors on the host, as a GPU refuses it.
        NotInBf16: by a call that GPUs have not in bf16.
    """

    def __init__(self):
        super().__init__()
        # As FakeTensorMode has: torch does not look for CUDA then.
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        self.waits: list[str] = []
        self.narrow: list[str] = []
        self.made_on_host: list[str] = []

    def holds(self, value):
        """`value`, a tensor of the host or a module, on the card: its parameters and buffers are replaced."""
        with _disable_current_modes():
            return self._moved(value)

    def _moved(self, value):
        if isinstance(value, torch.Tensor):
            return CardTensor(value.detach())
        done = {}
        for module in value.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        if id(tensor) not in done:
                            done[id(tensor)] = moved = CardTensor(tensor.detach())
                            if table is module._parameters:
                                moved.requires_grad_(tensor.requires_grad)._is_param = True
                        table[name] = done[id(tensor)]
        return value

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if func.namespace == "longmix":
            definition = torch._library.custom_ops.OPDEFS[f"longmix::{name}"]
            # Triton has no GPU here: what its operators declare stands for what they do. Of all others, what they call
            # is to be seen, too.
            is_declared = isinstance(args[0], str) and args[0] == "gpu_kernels"
            with self:
                return (definition._abstract_fn if is_declared else definition._init_fn)(*args, **kwargs)
        given = [isinstance(leaf, CardTensor) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        target = kwargs.get("device")
        # C++ asks for "meta" where it means the device of a tensor on the card.
        to_card = any(given) if target is None else torch.device(target).type != "cpu"
        self._check_devices(name, args, kwargs, to_card)
        if name in NOT_IN_BF16 and any(leaf.dtype == torch.bfloat16 for leaf in args if isinstance(leaf, torch.Tensor)):
            raise NotInBf16(f"{name}{_place()}")
        result = _computed(func, _inner(args), _inner({**kwargs, **({"device": HOST} if "device" in kwargs else {})}))
        if func._schema.is_mutable and name.endswith("_") and not name.startswith("_"):
            return args[0]
        if "out" in kwargs:
            return kwargs["out"]
        self._check_dtypes(name, result)
        if not given and not to_card and isinstance(result, torch.Tensor):
            self.made_on_host.append(name + _place())
        return tree_map(_wrapped, result) if to_card else result

    def _check_devices(self, name: str, args: tuple, kwargs: dict, to_card: bool) -> None:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_card = [isinstance(tensor, CardTensor) for tensor in tensors]
        if name in ("_to_copy", "copy_"):
            from_card, to_card = on_card[-1], on_card[0] if name == "copy_" else to_card
            waits = from_card or not (kwargs.get("non_blocking") or (name == "copy_" and args[2:] == (True,)))
            if from_card != to_card and waits and tensors[-1].numel():
                self.waits.append(f"copy to the {'host' if from_card else 'card'}{_place()}")
        elif any(on_card):
            is_number = [name not in STRICT and not tensor.dim() for tensor in tensors]
            if not all(map(max, on_card, is_number)):
                shapes = [(tuple(tensor.shape), str(tensor.device)) for tensor in tensors]
                raise DevicesMixed(f"{name} of tensors on different devices{_place()}: {shapes}")
            if name in WAITS or (name in INDEXED and any(tensor.dtype == torch.bool for tensor in tensors[1:])):
                self.waits.append(name + _place())

    def _check_dtypes(self, name: str, result) -> None:
        is_backward = torch._C._current_graph_task_id() != -1
        if name in WIDE or (name in WIDE_FORWARD and not is_backward):
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor) and tensor.dtype in HALVES:
                    self.narrow.append(f"{name} in {tensor.dtype}{_place()}")
                    return


class DevicesMixed(RuntimeError):
    """What a GPU would refuse."""


class NotInBf16(RuntimeError):
    """What torch has for CPUs alone."""


@contextlib.contextmanager
def card():
    """A `Card` for the time of the context."""
    lifts = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with _Attention(), Card() as made:
            yield made
    finally:
        torch._C._set_only_lift_cpu_tensors(lifts)


# Autocast. torch's own rules for CUDA look at the device that torch's C++ sees: they stand here again.

_TO_FP32 = _names(
    "acos asin cosh erfinv exp expm1 log log10 log1p log2 pow reciprocal rsqrt sinh softplus tan layer_norm "
    "native_layer_norm group_norm rms_norm cosine_similarity nll_loss nll_loss2d mse_loss l1_loss smooth_l1_loss "
    "huber_loss kl_div logsumexp cdist binary_cross_entropy_with_logits dist renorm norm"
)
# Their result is asked for in fp32, if no dtype is asked for.
_INTO_FP32 = {"prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm", "sum"}
_TO_WIDEST = _names("addcdiv addcmul atan2 bilinear cross dot vdot index_put tensordot scatter_add")
_TO_NARROW = _names(
    "_convolution conv1d conv2d conv3d convolution addmm addmv addr matmul einsum mm mv linear addbmm baddbmm bmm "
    "chain_matmul linalg_multi_dot linalg_vecdot prelu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
    "_thnn_fused_gru_cell _thnn_fused_lstm_cell"
)
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


@contextlib.contextmanager
def autocast(dtype: torch.dtype | None):
    """torch.autocast("cuda", dtype) on the stand-in; None: no autocast."""
    if dtype is None:
        yield
        return
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch's rules are replaced
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            if name.startswith("aten::") and packet in _TO_FP32 | _INTO_FP32 | _TO_WIDEST | _TO_NARROW:
                operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
                library.impl(operator, functools.partial(_autocast, packet, operator), "AutocastCUDA")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        library._destroy()
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


def _autocast(packet: str, operator, *args, **kwargs):
    """What `operator` does with its arguments under autocast."""
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if _is_cast(leaf)]
        if packet in _INTO_FP32:
            if isinstance(args[0], CardTensor) and args[0].dtype in HALVES and kwargs.get("dtype") is None:
                # The few that take it by position have it last, None there.
                args = args[:-1] if packet in ("softmax", "log_softmax") and len(args) == 3 else args
                kwargs = {**kwargs, "dtype": torch.float32}
            return operator(*args, **kwargs)
        if packet in _TO_WIDEST:
            dtype = torch.float32 if any(tensor.dtype == torch.float32 for tensor in tensors) else None
        else:
            dtype = torch.float32 if packet in _TO_FP32 else torch.get_autocast_dtype("cuda")
        if dtype is not None:
            args, kwargs = tree_map(lambda leaf: leaf.to(dtype) if _is_cast(leaf) else leaf, (args, kwargs))
        return operator(*args, **kwargs)


def _is_cast(leaf) -> bool:
    return isinstance(leaf, CardTensor) and leaf.is_floating_point() and leaf.dtype != torch.float64


class _Attention(TorchFunctionMode):
    """Attention as its fused kernels compute it: tensors of 16 bits come and go, sums and exponentials are in fp32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        query, key, value, *rest = args
        assert query.dtype == key.dtype == value.dtype
        dtype = query.dtype
        if torch.is_autocast_enabled("cuda") and dtype == torch.float32:
            dtype = torch.get_autocast_dtype("cuda")
        wide = torch.promote_types(dtype, torch.float32)
        bias = kwargs.get("attn_mask")
        if bias is not None and bias.dtype != torch.bool:
            assert bias.dtype == dtype  # of the query, as it comes to the kernels
            kwargs["attn_mask"] = bias.to(wide)
        before = torch.is_autocast_enabled("cuda")
        torch.set_autocast_enabled("cuda", False)
        try:
            return func(*(tensor.to(dtype).to(wide) for tensor in (query, key, value)), *rest, **kwargs).to(dtype)
        finally:
            torch.set_autocast_enabled("cuda", before)


def _computed(func, args, kwargs):
    """What the CPU makes of a call; zeros of the declared shape and dtype where it has no kernel for it."""
    try:
        return func(*args, **kwargs)
    except NotImplementedError:
        shapes = [
            tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, tree)
            for tree in (args, kwargs)
        ]
        declared = func(*shapes[0], **shapes[1])
        return tree_map(
            lambda leaf: torch.zeros_like(leaf, device="cpu") if isinstance(leaf, torch.Tensor) else leaf, declared
        )


def _inner(tree):
    return tree_map(lambda leaf: leaf.inner if isinstance(leaf, CardTensor) else leaf, tree)


def _wrapped(leaf):
    return CardTensor(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _place() -> str:
    """The line of longmix that is at work."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            folder = path.relative_to(PACKAGE).parts[0]
            if folder in ("modeling", "kernels", "trainer"):
                return f" in {path.relative_to(PACKAGE)}, {frame.f_code.co_name}"
        frame = frame.f_back
    return " in a backward pass" if torch._C._current_graph_task_id() != -1 else ""
