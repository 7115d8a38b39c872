"""Forecasting heads: the window's own scale, linear and Fourier extrapolation, and their loss."""

import cmath
import math

import pytest
import torch
from transformers import AutoModelForTimeSeriesPrediction

from longmix.modeling import load_pretrained, model_class

LENGTH, HORIZON, CHANNELS = 12, 7, 3


@pytest.fixture
def forecaster(make_model):
    """forecaster(model type, **fields) -> a tiny model with a forecasting head."""

    def make(model_type, **fields):
        shape = {"input_channels": CHANNELS, "input_length": LENGTH, "horizon": HORIZON}
        return make_model(model_type, AutoModelForTimeSeriesPrediction, **{**shape, **fields})

    return make


def window(steps=LENGTH, seed=0, batch=4):
    return 3 * torch.randn(batch, steps, CHANNELS, generator=torch.Generator().manual_seed(seed)) - 1


def series_of(signal, harmonics, future):
    """Algorithm 4 as it is written, for one signal: amplitudes and phases of the lowest frequencies, read beyond it."""
    length = len(signal)
    frequencies = [k / length if k < (length + 1) // 2 else k / length - 1 for k in range(length)]
    chosen = sorted(range(length), key=lambda k: abs(frequencies[k]))[: 1 + 2 * harmonics]
    total = [0.0] * future
    for k in chosen:
        coefficient = sum(x * cmath.exp(-2j * math.pi * frequencies[k] * t) for t, x in enumerate(signal))
        for step in range(future):
            angle = 2 * math.pi * frequencies[k] * (length + step) + cmath.phase(coefficient)
            total[step] += abs(coefficient) / length * math.cos(angle)
    return total


def test_forecasts_have_the_horizons_shape_and_can_be_loaded(model_type, forecaster, tmp_path):
    model = forecaster(model_type)
    values = window()
    forecast = model(values).logits
    assert forecast.shape == (4, HORIZON, CHANNELS) and forecast.dtype == torch.float32
    assert not torch.allclose(forecast[0], model(window(seed=1)).logits[0], atol=1e-3)
    model.save_pretrained(tmp_path)
    for loaded in (load_pretrained(tmp_path), AutoModelForTimeSeriesPrediction.from_pretrained(tmp_path)):
        assert type(loaded) is model_class(model_type, "ForForecasting")
        assert torch.equal(loaded(values).logits, forecast)


def test_a_constant_is_added_back(model_type, forecaster):
    model = forecaster(model_type)
    moved = torch.tensor([100.0, -20.0, 0.0])
    torch.testing.assert_close(model(window() + moved).logits, model(window()).logits + moved, rtol=1e-4, atol=1e-3)


def test_the_windows_scale_is_that_of_algorithm_3(forecaster):
    model = forecaster("transformer")
    values = window()
    mean, scale = values.mean(1, keepdim=True), (values.var(1, keepdim=True) + 1).sqrt()
    seen = model.encoder(values=(values - mean) / scale).last_hidden_state
    inner = model.projection(seen)
    future = torch.einsum("btc,ht->bhc", inner, model.decoder.combination.weight)
    future = future + model.decoder.combination.bias[:, None]
    torch.testing.assert_close(model(values).logits, future * scale + mean)


@pytest.mark.parametrize("length", [12, 11])
@pytest.mark.parametrize("harmonics", [0, 2, 5, 6, None])
def test_fourier_extrapolation_is_algorithm_4(length, harmonics, forecaster):
    horizon = 2 * length + 3
    model = forecaster("s3attention", input_length=length, horizon=horizon, harmonics=harmonics)
    past = window(length, batch=1)
    found = model.decoder(past)
    for channel in range(CHANNELS):
        signal = past[0, :, channel].double().tolist()
        expected = series_of(signal, horizon if harmonics is None else harmonics, horizon)
        torch.testing.assert_close(found[0, :, channel].double(), torch.tensor(expected).double(), rtol=0, atol=1e-5)


def test_all_harmonics_repeat_the_window(forecaster):
    model = forecaster("s3attention", horizon=30)
    past = window()
    torch.testing.assert_close(model.decoder(past), past.repeat(1, 3, 1)[:, :30])


def test_the_loss_is_the_mean_squared_error_of_the_windows(model_type, forecaster):
    model = forecaster(model_type)
    values, labels = window(), window(HORIZON, seed=3)
    output = model(values, labels=labels)
    torch.testing.assert_close(output.loss, ((output.logits - labels) ** 2).mean())
    torch.testing.assert_close(model(values, labels=labels, num_items_in_batch=10).loss, output.loss * 4 / 10)


def test_gradients_reach_every_parameter(model_type, forecaster):
    model = forecaster(model_type).train()
    model(window(), labels=window(HORIZON, seed=3)).loss.backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []


def test_what_does_not_fit_is_refused(model_type, make_config, forecaster):
    model = forecaster(model_type)
    with pytest.raises(ValueError, match=r"values has shape \(4, 11, 3\); allowed: \('B', 12, 3\)"):
        model(window(11))
    with pytest.raises(ValueError, match=r"labels has shape \(4, 6, 3\); allowed: \(4, 7, 3\)"):
        model(window(), labels=window(6))
    cls = model_class(model_type, "ForForecasting")
    for name in ("input_channels", "input_length", "horizon"):
        fields = {"input_channels": 3, "input_length": 12, "horizon": 7, name: None}
        with pytest.raises(ValueError, match=f"{name} is None; allowed: a number, for forecasts"):
            cls(make_config(model_type, **fields))
    for name, value in (("input_length", 1), ("input_length", 41), ("horizon", 0)):
        with pytest.raises(ValueError, match=f"{name} is {value}; allowed"):
            make_config(model_type, **{name: value})
    with pytest.raises(ValueError, match="harmonics is -1; allowed: null or at least 0"):
        make_config("s3attention", harmonics=-1)
