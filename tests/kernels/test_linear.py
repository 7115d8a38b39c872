"""Linear layers whose products oneDNN makes: results, derivatives, where they are made so, and whole models."""

import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForMaskedLM

from longmix.kernels import ops
from longmix.kernels.build import BuildError
from longmix.kernels.linear import products
from longmix.kernels.linear_cross_entropy import cpu_kernels
from longmix.kernels.selection import plain
from longmix.modeling import MODEL_TYPES
from longmix.modeling.plain_linear import linear


class Wrapped(torch.Tensor):
    """A tensor that multiplies as it does."""


# Leading sizes, inputs, outputs.
SHAPES = [((1,), 1, 1), ((7,), 3, 5), ((130,), 33, 64), ((2, 65), 128, 31), ((3, 2, 20), 16, 200), ((0,), 8, 8)]


class Onlooker(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.fixture
def by_onednn(monkeypatch):
    """On a processor where it gains, for products of any size but none."""
    if not products.is_there():
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(products, "gains", lambda: True)
    for name in ("LEAST_WORK", "FEWEST_ROWS", "FEWEST_CHANNELS"):
        monkeypatch.setattr(products, name, 1)
    monkeypatch.setattr(products, "DIGITS", 60)


@pytest.fixture
def made(by_onednn, monkeypatch):
    """The arguments of the products that oneDNN has made."""
    found, product = [], products.product
    monkeypatch.setattr(products, "product", lambda *tensors: found.append(tensors) or product(*tensors))
    return found


@pytest.fixture
def is_ours(made):
    """is_ours(*arguments of ops.linear): whether oneDNN makes the product."""

    def call(*tensors):
        made.clear()
        ops.linear(*tensors)
        return len(made) == 1

    return call


def drawn(leading, inputs, outputs, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = ((*leading, inputs), (outputs, inputs), (outputs,))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("layout", ["rows", "columns", "parts", "apart"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_and_gradients_are_those_of_float64(by_onednn, relative_rms, poisoned_memory, shape, layout, has_bias):
    values, weight, bias = drawn(*shape)
    if layout == "columns":
        values, weight = values.mT.contiguous().mT if values.dim() > 1 else values, weight.mT.contiguous().mT
    elif layout == "parts":
        values, weight = (torch.cat([part, part], -1)[..., : part.shape[-1]] for part in (values, weight))
    elif layout == "apart":
        values, weight = (torch.stack([part, part], -1)[..., 0] for part in (values, weight))
    tensors = [values, weight, bias][: 2 + has_bias]
    found = [tensor.detach().requires_grad_() for tensor in tensors]
    truth = [tensor.detach().double().requires_grad_() for tensor in tensors]
    result, true = ops.linear(*found), functional.linear(*truth)
    assert result.dtype == torch.float32 and result.shape == true.shape
    slope = torch.randn(true.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = torch.autograd.grad(result, found, slope.float())
    pairs = zip([result, *gradients], [true, *torch.autograd.grad(true, truth, slope)], strict=True)
    for ours, exact in pairs:
        assert relative_rms(ours.detach(), exact.detach(), absolute_at_zero=True) < 5e-7


def test_a_gradient_that_is_spread_out_is_read_as_it_is(by_onednn):
    """The gradient of a sum is one number, of which every place reads the same."""
    values, weight, _ = drawn((50,), 20, 30)
    values.requires_grad_()
    ops.linear(values, weight).sum().backward()
    torch.testing.assert_close(values.grad, weight.sum(0).expand(50, 20))


def test_frozen_parameters_get_no_gradient(by_onednn):
    values, weight, bias = drawn((50,), 20, 30)
    values.requires_grad_()
    ops.linear(values, weight, bias).sum().backward()
    assert values.grad is not None and weight.grad is None and bias.grad is None
    frozen = [tensor.detach() for tensor in (values, weight, bias)]
    assert not ops.linear(*frozen).requires_grad


def test_derivatives_of_every_order_and_under_torch_func(by_onednn):
    values, weight, bias = drawn((40,), 20, 30)

    def loss(linear):
        return lambda *tensors: linear(*tensors).sin().sum()

    for transform, is_batched in (
        (lambda loss: torch.func.grad(loss, (0, 1, 2)), False),
        (lambda loss: torch.func.jacfwd(loss, (0, 1, 2)), False),
        (lambda loss: torch.func.hessian(loss, 1), False),
        (lambda loss: torch.func.vmap(torch.func.grad(loss), (0, None, None)), True),
    ):
        first = torch.stack([values, 2 * values]) if is_batched else values
        ours, theirs = (transform(loss(linear))(first, weight, bias) for linear in (ops.linear, functional.linear))
        torch.testing.assert_close(ours, theirs)
    values.requires_grad_()
    weight.requires_grad_()

    def of_penalty(linear):
        (gradient,) = torch.autograd.grad(loss(linear)(values, weight, bias), weight, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), (values, weight))

    for ours, theirs in zip(of_penalty(ops.linear), of_penalty(functional.linear), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_transforms_of_a_graph_that_was_made_before(by_onednn):
    values, weight, bias = (x.requires_grad_() for x in drawn((40,), 20, 30))
    directions = torch.randn(3, 40, 30)

    def of_all(linear):
        result = linear(values, weight, bias)

        def gradients(direction):
            return torch.autograd.grad(result, (values, weight, bias), direction, create_graph=True)

        yield from torch.func.vmap(gradients)(directions)
        yield torch.func.grad(lambda direction: gradients(direction)[1].square().sum())(directions[0])

    for ours, theirs in zip(of_all(ops.linear), of_all(functional.linear), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_it_is_taken_for_fp32_alone(is_ours):
    assert is_ours(*drawn((50,), 20, 30))
    for dtype in (torch.float64, torch.bfloat16):
        assert not is_ours(*drawn((50,), 20, 30, dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_ours(*drawn((50,), 20, 30))
        assert ops.linear(*drawn((50,), 20, 30)).dtype == torch.bfloat16
    values, weight, bias = drawn((50,), 20, 30)
    assert ops.linear(values.to("meta"), weight.to("meta"), bias.to("meta")).shape == (50, 30)


def test_wrapped_tensors_and_those_who_look_on_have_torchs_own(is_ours):
    values, weight, bias = drawn((50,), 20, 30)
    assert is_ours(values, torch.nn.Parameter(weight), torch.nn.Parameter(bias))
    assert not is_ours(values, weight.as_subclass(Wrapped), bias)
    assert ops.linear(values, weight.to_sparse(), None).shape == (50, 30)
    with FlopCounterMode(display=False) as counter:
        assert not is_ours(values, weight, bias)
    assert counter.get_total_flops() == 2 * 50 * 20 * 30
    with torch.device("cpu"):
        assert is_ours(values, weight, bias)
        with Onlooker():
            assert not is_ours(values, weight, bias)
    layer = torch.nn.Linear(20, 30)
    seen = []
    assert linear(layer, values).equal(ops.linear(values, layer.weight, layer.bias)) and not seen
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *call: seen.append(call))
    linear(layer, values)
    handle.remove()
    assert len(seen) == 1


def test_any_bias_that_torch_takes(by_onednn, made):
    values, weight, _ = drawn((50,), 20, 30)
    strided, one = torch.randn(30, 2)[:, 0], torch.randn(1)
    for bias in (strided, one.expand(30), one, one[0], torch.randn(1, 30), torch.randn(50, 30)):
        found, truth = ops.linear(values, weight, bias), functional.linear(values, weight, bias)
        torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-5)
    assert len(made) == 2  # the others are not biases of the outputs


def test_forward_derivatives_of_forward_derivatives(by_onednn):
    values, weight, _ = drawn((50,), 20, 30)

    def twice(linear):
        def once(x):
            return torch.func.jvp(lambda q: linear(q, weight).sin(), (x,), (x,))[1].sum()

        return torch.func.jvp(once, (values,), (values,))[1]

    torch.testing.assert_close(twice(ops.linear), twice(functional.linear))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(values, values)
        found, truth = (
            torch.autograd.forward_ad.unpack_dual(linear(dual, weight)).tangent
            for linear in (ops.linear, functional.linear)
        )
    torch.testing.assert_close(found, truth)


def test_forward_derivatives_of_gradients(made):
    """The tangents begin behind the forward pass, where oneDNN has multiplied."""
    values, weight, _ = drawn((50,), 20, 30)
    values.requires_grad_()
    weight.requires_grad_()
    gradient = torch.randn(50, 30)
    found = {}
    for name, multiply in (("ours", ops.linear), ("torch's", functional.linear)):
        result = multiply(values, weight)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(gradient, 2 * gradient)
            gradients = torch.autograd.grad(result, (values, weight), dual)
            found[name] = [torch.autograd.forward_ad.unpack_dual(one) for one in gradients]
    assert len(made) == 1
    for ours, theirs in zip(found["ours"], found["torch's"], strict=True):
        torch.testing.assert_close(ours.primal, theirs.primal)
        torch.testing.assert_close(ours.tangent, theirs.tangent)


def test_symbols_of_torch_fx_go_through_the_layer():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            return linear(self.layer, linear(self.layer, x))

    graph = torch.fx.symbolic_trace(Twice())
    assert [node.op for node in graph.graph.nodes].count("call_module") == 2


def test_it_keeps_what_derivatives_need_alone(made):
    values, weight, bias = drawn((50,), 20, 30)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        ops.linear(values, weight.requires_grad_(), bias)
        assert [tensor.shape for tensor in kept] == [(50, 20)]
        kept.clear()
        result = ops.linear(values.requires_grad_() * 1, weight.detach(), bias)
        assert [tensor.shape for tensor in kept if tensor.dim()] == [(30, 20)]
    assert len(made) == 2 and result.requires_grad


def test_few_numbers_of_rows_are_compiled(monkeypatch, is_ours):
    monkeypatch.setattr(products, "DIGITS", 4)
    assert [products.few_rows(rows) for rows in (0, 1, 15, 16, 17, 416, 417, 1000, 1024)] == [
        *(0, 1, 15, 16, 18, 416, 448, 1024, 1024)
    ]
    assert len({products.few_rows(rows) for rows in range(1 << 14)}) < 100
    values, weight, bias = drawn((448,), 20, 30)
    assert is_ours(values, weight, bias) and not is_ours(values[:447], weight, bias)


def test_the_gradient_by_a_weight_alone(made):
    gradient, inputs = torch.randn(64, 30), torch.randn(64, 20)
    torch.testing.assert_close(ops.weight_gradient(gradient, inputs), gradient.mT @ inputs, rtol=1e-5, atol=1e-5)
    assert len(made) == 1
    with products.by_torch():
        assert ops.weight_gradient(gradient, inputs).equal(gradient.mT @ inputs) and len(made) == 1


def test_longmix_kernels_and_contexts_decide(is_ours, monkeypatch):
    tensors = drawn((50,), 20, 30)
    for name, expected in (("auto", True), ("cpu", True), ("portable", False), ("reference", False)):
        monkeypatch.setenv("LONGMIX_KERNELS", name)
        assert is_ours(*tensors) is products.is_chosen() is expected
    monkeypatch.setattr(products, "gains", lambda: False)
    monkeypatch.setenv("LONGMIX_KERNELS", "cpu")
    assert is_ours(*tensors)
    with plain():
        assert not is_ours(*tensors)
    with products.by_torch():
        assert not is_ours(*tensors)
    monkeypatch.setenv("LONGMIX_KERNELS", "auto")
    assert not is_ours(*tensors)
    monkeypatch.setenv("LONGMIX_KERNELS", "gpu")
    with pytest.raises(ValueError, match="LONGMIX_KERNELS is 'gpu'; allowed: auto, "):
        ops.linear(*tensors)


def test_small_products_are_torchs_to_the_last_bit(is_ours, monkeypatch):
    values, weight, bias = drawn((64,), 128, 256)
    monkeypatch.setattr(products, "LEAST_WORK", 64 * 128 * 256 + 1)
    assert not is_ours(values, weight, bias)
    assert ops.linear(values, weight, bias).equal(functional.linear(values, weight, bias))
    monkeypatch.setattr(products, "LEAST_WORK", 64 * 128 * 256)
    assert is_ours(values, weight, bias)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(8, 1 << 15, 64), (8, 64, 1 << 15), (1 << 14, 32, 32)])
def test_narrow_products_are_torchs(monkeypatch, rows, inputs, outputs):
    monkeypatch.setattr(products, "is_chosen", lambda: True)

    def takes(*sizes):
        rows, inputs, outputs = sizes
        return products.multiplies(torch.empty(rows, inputs), torch.empty(outputs, inputs))

    assert takes(rows, inputs, outputs)
    for index, least in enumerate((8, 32, 32)):
        sizes = [2 * rows, 2 * inputs, 2 * outputs]
        sizes[index] = least - 1
        assert not takes(*sizes)


def test_compiled_and_exported_programs_have_none_of_it(by_onednn):
    values, weight, bias = drawn((50,), 20, 30)
    layer = torch.nn.Linear(20, 30)

    class Model(torch.nn.Module):
        def forward(self, inputs):
            return ops.linear(inputs, layer.weight, layer.bias)

    program = torch.export.export(Model(), (values,))
    traced = torch.jit.trace(lambda inputs: ops.linear(inputs, weight, bias), values)
    assert "mkldnn" not in str(program.graph) and "mkldnn" not in str(traced.graph)


@pytest.mark.parametrize(
    ("vendor", "capability", "expected"),
    [("AuthenticAMD", "AVX512", True), ("AuthenticAMD", "AVX2", False), ("GenuineIntel", "AVX512", False)],
)
def test_it_gains_where_torch_leaves_half_of_a_processor_unused(monkeypatch, tmp_path, vendor, capability, expected):
    facts = tmp_path / "cpuinfo"
    facts.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: AuthenticAMD\n")
    monkeypatch.setattr(products, "CPU_FACTS", facts)
    monkeypatch.setattr(products, "is_there", lambda: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert products.gains.__wrapped__() is expected
    monkeypatch.setattr(products, "CPU_FACTS", tmp_path / "none")
    assert products.gains.__wrapped__() is False


def test_what_does_not_fit_is_told_by_torch(by_onednn):
    values, weight, bias = drawn((50,), 20, 30)
    for tensors in ((values, weight.mT, bias), (values, weight, bias[:7]), (values.double(), weight, bias)):
        with pytest.raises(RuntimeError):
            ops.linear(*tensors)


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_loss_of_a_layer_in_several_products_is_that_of_float64(by_onednn, relative_rms, monkeypatch, has_bias):
    try:
        cpu_kernels.FUNCTIONS["linear_cross_entropy"].load(torch.float32)
    except BuildError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(cpu_kernels, "PRODUCT", 30 * 50)
    hidden, weight, bias = drawn((100,), 20, 50)
    labels = torch.arange(100) % 50
    tensors = [tensor.requires_grad_() for tensor in (hidden, weight, bias)[: 2 + has_bias]]
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    total, is_right = ops.linear_cross_entropy(hidden, weight, bias if has_bias else None, labels)
    logits = functional.linear(*exact)
    truth = functional.cross_entropy(logits, labels, reduction="sum")
    assert is_right.equal(logits.argmax(1) == labels) and total.item() == pytest.approx(truth.item(), rel=1e-6)
    for ours, true in zip(torch.autograd.grad(total, tensors), torch.autograd.grad(truth, exact), strict=True):
        assert relative_rms(ours, true) < 1e-6


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_models_have_the_same_loss_and_gradients(made, relative_rms, model_type):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        model_type, vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
    )
    model = AutoModelForMaskedLM.from_config(config).eval()
    tokens = torch.randint(5, 50, (3, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(40) < torch.tensor([[40], [23], [1]])
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": tokens.where(mask, -100)}

    def run():
        model.zero_grad()
        loss = model(**batch, output_logits=False).loss
        loss.backward()
        return loss.detach(), {name: value.grad for name, value in model.named_parameters() if value.grad is not None}

    loss, gradients = run()
    assert len(made) > 10
    made.clear()
    with products.by_torch():
        true_loss, true_gradients = run()
    assert not made and gradients.keys() == true_gradients.keys()
    assert loss.item() == pytest.approx(true_loss.item(), rel=1e-6)
    for name, gradient in gradients.items():
        assert relative_rms(gradient, true_gradients[name], absolute_at_zero=True) < 2e-5, name
