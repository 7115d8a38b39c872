"""Batch normalisation per position, over the valid tokens of all ranks."""

import torch
from torch import distributed, nn
from torch.nn import functional
from transformers import initialization as init


class MaskedBatchNorm(nn.Module):
    """Normalises each position over the valid samples and all channels; gain and bias per position (BatchNorm1d(N)).

    Training uses the statistics of the batch, summed over all ranks, and averages them into the running ones, which
    evaluation uses. Positions where no sample is valid keep theirs. The variance is the biased one in both.
    """

    momentum = 0.1

    def __init__(self, positions: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(positions))
        self.bias = nn.Parameter(torch.zeros(positions))
        # A conversion after creation: DeepSpeed's ZeRO-3 context makes every new float tensor half precision.
        self.register_buffer("running_mean", torch.zeros(positions).to(torch.float32))
        self.register_buffer("running_variance", torch.ones(positions).to(torch.float32))

    def reset(self) -> None:
        """Set parameters and buffers, except those that were loaded."""
        init.ones_(self.weight)
        init.zeros_(self.bias)
        init.zeros_(self.running_mean)
        init.ones_(self.running_variance)

    def extend(self, positions: int) -> None:
        """Add positions behind the present ones, as new as those were at the start."""
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_variance", 1.0)):
            old = getattr(self, name)
            new = torch.cat([old.detach(), old.new_full((positions - len(old),), value)])
            setattr(self, name, nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new)

    def _apply(self, fn, recurse: bool = True):
        # module.bfloat16() and the like must not round the running statistics.
        kept = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, buffer in kept.items():
            moved = getattr(self, name)
            if torch.finfo(moved.dtype).bits < 32:
                setattr(self, name, buffer.to(moved.device))
        return self

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """(B, N, D) and mask (B, N) or None -> (B, N, D); rows of padding are finite and mean nothing."""
        positions = hidden_states.shape[1]
        wide = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
        if self.training:
            mean, variance = self._batch_statistics(wide, mask)
        else:
            mean = self.running_mean[:positions].to(wide.dtype)
            variance = self.running_variance[:positions].to(wide.dtype)
        gain = self.weight[:positions].to(wide.dtype) * torch.rsqrt(variance + self.eps)
        shift = self.bias[:positions].to(wide.dtype) - mean * gain
        return torch.addcmul(shift[:, None], wide, gain[:, None]).to(hidden_states.dtype)

    def _batch_statistics(self, values: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and biased variance of each position, (N,) each, over the valid rows of all ranks.

        Another rank's batch may be longer: its positions count for the running statistics here, too.
        """
        batch, positions, width = values.shape
        if mask is None:
            count = values.new_full((positions,), batch * width)
        else:
            count = mask.sum(0).to(values.dtype) * width
            values = torch.where(mask[:, :, None], values, 0)
        # Two passes: the variance from a sum of squares cancels when the mean is large.
        all_positions = len(self.running_mean)
        total = _sum_over_ranks(torch.stack([values.sum((0, 2)), count]), all_positions)
        count = total[1].detach()
        mean = total[0] / count.clamp(min=1)
        deviation = values - mean[:positions, None]
        if mask is not None:
            deviation = torch.where(mask[:, :, None], deviation, 0)
        variance = _sum_over_ranks(deviation.square().sum((0, 2)), all_positions) / count.clamp(min=1)
        self._update_running(mean.detach(), variance.detach(), count)
        return mean[:positions], variance[:positions]

    @torch.no_grad()
    def _update_running(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        if torch._C._current_graph_task_id() != -1:
            # Inside a backward pass: gradient checkpointing recomputes a batch that was counted already.
            return
        seen = count > 0
        for running, batch in ((self.running_mean, mean), (self.running_variance, variance)):
            part = running[: len(batch)]
            part.copy_(torch.where(seen, part.lerp(batch.to(part.dtype), self.momentum), part))


def _sum_over_ranks(tensor: torch.Tensor, positions: int) -> torch.Tensor:
    """The sum over all ranks, with gradients: (.., N) -> (.., positions); in a single process `tensor` itself."""
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return _AllReduce.apply(functional.pad(tensor, (0, positions - tensor.shape[-1])))
    return tensor


class _AllReduce(torch.autograd.Function):
    """Sum over ranks; every rank's loss depends on every rank's input, so the gradients are summed too."""

    @staticmethod
    def forward(ctx, tensor):
        total = tensor.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        # Not in place: who differentiates the gradient needs the sum of that over the ranks, too.
        return _AllReduce.apply(gradient)
