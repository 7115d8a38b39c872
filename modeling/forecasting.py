"""Forecasting: the encoder over a window of the past, and two ways from its outputs to the future."""

from typing import ClassVar

import torch
from torch import nn
from transformers.utils import can_return_tuple

from .configuration import MixerConfig
from .heads import MixerHeadOutput
from .losses import forecasting_loss
from .model import MixerModel, MixerPreTrainedModel


class LinearExtrapolation(nn.Module):
    """Each future step is a learned linear combination of the past ones, the same for all channels."""

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.combination = nn.Linear(config.input_length, config.horizon)

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        """(B, input_length, C) -> (B, horizon, C)."""
        return self.combination(past.transpose(1, 2)).transpose(1, 2)


class MixerForForecasting(MixerPreTrainedModel):
    """The encoder, a projection to the channels at each past step, and their extrapolation.

    Inputs are standardised within each window and the forecast is put back, with sqrt(variance + 1) as the scale
    (S3Attention, Algorithm 3), for every mixer alike.

    Raises:
        ValueError: at construction, without input_channels, input_length or horizon.
    """

    encoder_class: ClassVar[type[MixerModel]]
    decoder_class: ClassVar[type[nn.Module]] = LinearExtrapolation

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        for name in ("input_channels", "input_length", "horizon"):
            config.require(name, getattr(config, name) is not None, "a number, for forecasts")
        self.encoder = self.encoder_class(config)
        self.projection = nn.Linear(config.hidden_size, config.input_channels)
        self.decoder = self.decoder_class(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        values: torch.Tensor,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> MixerHeadOutput:
        """Forecast what follows each window.

        Args:
            values: (B, input_length, C).
            labels: (B, horizon, C), what did follow.
            num_items_in_batch: the loss, the mean squared error of a window, is summed over the windows and divided by
                it; None: by their number.

        Returns:
            The forecast as `logits`, (B, horizon, C), fp32 or wider.

        Raises:
            ValueError: a window of another length.
        """
        expected = (self.config.input_length, self.config.input_channels)
        if values.dim() != 3 or values.shape[1:] != expected:
            raise ValueError(f"values has shape {tuple(values.shape)}; allowed: {('B', *expected)}")
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        mean = values.mean(1, keepdim=True)
        scale = (values.var(1, keepdim=True) + 1).sqrt()
        outputs = self.encoder(
            values=(values - mean) / scale, output_hidden_states=output_hidden_states, return_dict=True
        )
        forecast = self.decoder(self.projection(outputs.last_hidden_state)).to(values.dtype) * scale + mean
        loss = task_loss = None
        if labels is not None:
            if labels.shape != forecast.shape:
                raise ValueError(f"labels has shape {tuple(labels.shape)}; allowed: {tuple(forecast.shape)}")
            loss = forecasting_loss(forecast, labels, num_items_in_batch)
            loss, task_loss = self._training_loss(loss, outputs, len(labels), num_items_in_batch)
        auxiliary_loss = self._told_auxiliary_loss(outputs, labels)
        return MixerHeadOutput(loss, forecast, outputs.hidden_states, auxiliary_loss, task_loss)
