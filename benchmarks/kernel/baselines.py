"""The papers' own algorithms in plain PyTorch, as fast as each allows: what the operations are measured against.

The functions are those of `longmix.kernels.ops`, for samples of full length; they compute in the dtype of their input.
Where autograd makes a slow backward pass of a fast forward pass, a Function does the same algorithm on the gradients.

What else was tried, in times of what stands here, forward / forward and backward (fp32, B = 2, N = 4096, D = 128, one
CPU thread unless stated):

- givens_mix: Algorithms 1 and 2 as printed, with their copies and flips and autograd between the scans, 3.1 / 3.0 (the
  printed backward pass conjugates one factor of each pair only, so that its gradients are wrong for complex factors);
  recursive doubling, all rows in each of log2 N passes, 6 / 3.6.
- link_mix, all rows at once: scatter_add 7 / 7, the sum over a row's links in place of the scatter 8 / 6, a batched
  matrix product 4 / 3.3; one link after the other 3.3 / 3.8. PyTorch's sparse matrix product gathers, multiplies and
  adds in one go, which is another algorithm: 0.5 / 22 (our portable path, with embedding_bag, 0.35 / 0.5). Adding up
  the gradient by gathering along the reversed links takes 0.75 of the scatter's time, but wants links that repeat.
- wavelets: transforms along the strided axis 1.3 / 3.4; gradients by autograd 1 / 1.6; inverse transforms of half the
  length, with the spectrum folded, 1.1 of the full ones.
- causal attention: the sums of all features and positions at once, (B, H, N, m, d), 3.3 to 13 forward, by the order of
  axes and the contraction; a few positions at a time 1 forward, 1.7 on two threads; position by position 0.8 forward,
  2 on two threads, and no gradient.
"""

import torch
from kernel.baseline_scan import givens_mix, token_givens_mix
from torch.autograd.function import once_differentiable
from torch.nn import functional

from longmix.kernels.bands.layout import bands_of, period_of

__all__ = [
    "feature_attention",
    "givens_mix",
    "linear_attention",
    "link_mix",
    "random_feature_attention",
    "token_givens_mix",
    "wavelet_analysis",
    "wavelet_synthesis",
]

# Rows whose linked rows are gathered at a time, so that they stay in the processor's caches.
ROWS = 128


def link_mix(value: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Paramixer by gathering each row's linked rows, multiplying them by their weights and adding them up."""
    batch, positions, _ = value.shape
    position = torch.arange(positions, device=value.device)[:, None]
    start = positions * torch.arange(batch, device=value.device)[:, None, None]
    x = value.flatten(0, 1)
    for links, factor in zip(offsets, weights.flatten(0, 1).unbind(1), strict=True):
        targets = (start + (position + links) % positions).flatten(0, 1)
        x = _Links.apply(x, factor, targets)
    return x.view_as(value)


class _Links(torch.autograd.Function):
    """x[i] + sum_k weights[i, k] x[targets[i, k]] for x (B * N, D), weights and targets (B * N, K)."""

    @staticmethod
    def forward(ctx, x, weights, targets):
        ctx.save_for_backward(x, weights, targets)
        result, gathered = torch.empty_like(x), _memory_for_links(x, targets)
        for rows in _row_blocks(x):
            linked = _gather(x, targets[rows], gathered)
            torch.baddbmm(x[rows, None], weights[rows, None], linked, out=result[rows, None])
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, weights, targets = ctx.saved_tensors
        of_x, of_weights, gathered = gradient.clone(), torch.empty_like(weights), _memory_for_links(x, targets)
        for rows in _row_blocks(x):
            linked = _gather(x, targets[rows], gathered)
            torch.bmm(gradient[rows, None], linked.mT, out=of_weights[rows, None])
            products = torch.mul(weights[rows, :, None], gradient[rows, None], out=linked)
            of_x.index_add_(0, targets[rows].flatten(), products.flatten(0, 1))
        return of_x, of_weights, None


def _row_blocks(x: torch.Tensor) -> list[slice]:
    return [slice(start, min(start + ROWS, len(x))) for start in range(0, len(x), ROWS)]


def _memory_for_links(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return x.new_empty(ROWS * targets.shape[1], x.shape[1])


def _gather(x: torch.Tensor, targets: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """The rows x[targets], (n, K, D)."""
    return torch.index_select(x, 0, targets.flatten(), out=memory[: targets.numel()]).unflatten(0, targets.shape)


def wavelet_analysis(x: torch.Tensor, filters: torch.Tensor, levels: int) -> torch.Tensor:
    """WavSpA by convolutions over the full length, as products of Fourier transforms; every second row stays.

    Time is the last axis until the bands are joined.
    """
    rows, missing = x.transpose(1, 2), period_of(x.shape[1], levels) - x.shape[1]
    rows = functional.pad(rows, (0, missing)) if missing else rows
    taps = _filter_pair(filters)
    details = []
    for _ in range(levels):
        rows, detail = _Analysis.apply(rows, taps)
        details.append(detail)
    return _Join.apply(rows, *reversed(details))


def wavelet_synthesis(bands: torch.Tensor, filters: torch.Tensor, levels: int, batch: int, length: int) -> torch.Tensor:
    """The adjoint: convolutions of bands with zeros between their rows."""
    rows, *details = (band.transpose(1, 2) for band in bands_of(bands, batch, length, levels))
    taps = _filter_pair(filters)
    for detail in details:
        rows = _Synthesis.apply(rows, detail, taps)
    return rows[..., :length].transpose(1, 2)


class _Join(torch.autograd.Function):
    """Bands [cA_J, cD_J, .., cD_1], (B, D, n_j) each -> (B N', D), by one copy."""

    @staticmethod
    def forward(ctx, *bands):
        batch, width, _ = bands[0].shape
        ctx.batch, ctx.positions, ctx.levels = batch, 2 * bands[-1].shape[2], len(bands) - 1
        joined = bands[0].new_empty(batch * ctx.positions, width)
        for band, place in zip(bands, bands_of(joined, batch, ctx.positions, ctx.levels), strict=True):
            place.copy_(band.transpose(1, 2))
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return (*(band.transpose(1, 2) for band in bands_of(gradient, ctx.batch, ctx.positions, ctx.levels)),)


def _filter_pair(filters: torch.Tensor) -> torch.Tensor:
    """Low-pass taps (T, D) or (T,) -> (2, D or 1, T), low-pass h and high-pass (-1)^l h[T - 1 - l]."""
    low = filters.reshape(len(filters), -1).T
    signs = torch.ones_like(low)
    signs[:, 1::2] = -1
    return torch.stack([low, low.flip(1) * signs])


class _Analysis(torch.autograd.Function):
    """(B, D, n) -> approximation and detail, (B, D, n / 2) each."""

    @staticmethod
    def forward(ctx, rows, taps):
        spectrum, response = torch.fft.rfft(rows), _response(taps, rows.shape[-1])
        ctx.save_for_backward(spectrum, response)
        ctx.taps = taps.shape
        return _filter(spectrum, response, rows.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx, of_approximation, of_detail):
        spectrum, response = ctx.saved_tensors
        spectra = _spectra(of_approximation, of_detail)
        return _combine(spectra, response, 2 * of_detail.shape[-1]), _of_taps(spectra, spectrum, ctx.taps)


class _Synthesis(torch.autograd.Function):
    """Approximation and detail, (B, D, n / 2) each -> (B, D, n)."""

    @staticmethod
    def forward(ctx, approximation, detail, taps):
        period = 2 * detail.shape[-1]
        spectra, response = _spectra(approximation, detail), _response(taps, period)
        ctx.save_for_backward(spectra, response)
        ctx.taps = taps.shape
        return _combine(spectra, response, period)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        spectra, response = ctx.saved_tensors
        spectrum = torch.fft.rfft(gradient)
        return *_filter(spectrum, response, gradient.shape[-1]), _of_taps(spectra, spectrum, ctx.taps)


def _response(taps: torch.Tensor, period: int) -> torch.Tensor:
    """Taps (2, D, T), as often around the period as they need -> (2, D, n / 2 + 1)."""
    if taps.shape[-1] > period:
        taps = functional.pad(taps, (0, -taps.shape[-1] % period)).unflatten(-1, (-1, period)).sum(-2)
    return torch.fft.rfft(taps, n=period)


def _spectra(approximation: torch.Tensor, detail: torch.Tensor) -> torch.Tensor:
    """The spectra of both bands with zeros between their rows, (B, 2, D, n / 2 + 1)."""
    batch, features, rows = detail.shape
    bands = detail.new_zeros(batch, 2, features, 2 * rows)
    bands[:, 0, :, ::2], bands[:, 1, :, ::2] = approximation, detail
    return torch.fft.rfft(bands)


def _filter(spectrum: torch.Tensor, response: torch.Tensor, period: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.fft.irfft(spectrum[:, None] * response.conj(), n=period)[..., ::2].unbind(1)


def _combine(spectra: torch.Tensor, response: torch.Tensor, period: int) -> torch.Tensor:
    return torch.fft.irfft((spectra[:, 0] * response[0]).addcmul_(spectra[:, 1], response[1]), n=period)


def _of_taps(spectra: torch.Tensor, spectrum: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Gradient of the taps: the correlation of bands and rows, from their spectra."""
    period, spectrum = 2 * (spectrum.shape[-1] - 1), torch.conj_physical(spectrum)
    product = spectra[0] * spectrum[0]
    for sample in range(1, len(spectrum)):
        product.addcmul_(spectra[sample], spectrum[sample])
    if shape[1] == 1:
        product = product.sum(1, keepdim=True)
    lags = -torch.arange(shape[2], device=spectrum.device) % period
    return torch.fft.irfft(product, n=period)[..., lags]


def feature_attention(
    query_log: torch.Tensor, key_log: torch.Tensor, value: torch.Tensor, causal: bool = False
) -> torch.Tensor:
    """Performer's attention (Choromanski et al., eq. 4): exponentials relative to the largest."""
    query = (query_log - query_log.detach().amax(-1, keepdim=True)).exp_()
    key = (key_log - key_log.detach().amax((-2, -1), keepdim=True)).exp_()
    return linear_attention(query, key, value, causal)


def random_feature_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    projection: torch.Tensor,
    waves: torch.Tensor | None = None,
    columns: torch.Tensor | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """Features of queries and keys (Performers, lemma 1), times those of their positions (FLT, algorithm 1)."""
    query, key = (x * x.shape[-1] ** -0.25 for x in (query, key))
    query_log, key_log = query @ projection.T, key @ projection.T - key.square().sum(-1, keepdim=True) / 2
    if waves is not None:
        query_log, key_log = query_log + waves @ columns[0], key_log + waves @ columns[1]
    return feature_attention(query_log, key_log, value, causal)


def linear_attention(
    query_features: torch.Tensor, key_features: torch.Tensor, value: torch.Tensor, causal: bool = False
) -> torch.Tensor:
    """Two matrix products, or if causal the cumulative sums over positions of the outer products of keys and values."""
    if causal:
        # The last column sums the weights.
        sums = _CausalSums.apply(query_features, key_features, functional.pad(value, (0, 1), value=1.0))
        return sums[..., :-1] / sums[..., -1:]
    total = query_features @ key_features.sum(2).unsqueeze(-1)
    return query_features @ (key_features.transpose(2, 3) @ value) / total


# Numbers in the cumulative sums that are held at a time: what the processor's caches hold.
BLOCK = 1 << 18


class _CausalSums(torch.autograd.Function):
    """sum_{j <= i} (query_i . key_j) value_j, one feature's cumulative sum of key times value after the other.

    Gradients are cumulative sums as well (Katharopoulos et al., eqs. 13 to 15), those of keys and values from the end.
    """

    @staticmethod
    def forward(ctx, query, key, value):
        ctx.save_for_backward(query, key, value)
        batch_and_heads = value.shape[:2]
        query, key, value = (_positions_last(tensor) for tensor in (query, key, value))
        result = torch.zeros_like(value)
        for heads, memory in _groups(value):
            for feature in range(query.shape[1]):
                sums = _sums(key[heads, feature], value[heads], memory)
                result[heads].addcmul_(query[heads, feature, None], sums)
        return result.unflatten(0, batch_and_heads).transpose(2, 3)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        batch_and_heads = gradient.shape[:2]
        query, key, value, gradient = (_positions_last(tensor) for tensor in (*ctx.saved_tensors, gradient))
        of_query = torch.empty_like(query)
        for heads, memory in _groups(value):
            for feature in range(query.shape[1]):
                sums = _sums(key[heads, feature], value[heads], memory)
                torch.sum(sums.mul_(gradient[heads]), 1, out=of_query[heads, feature])
        query, key, value, gradient = (tensor.flip(2) for tensor in (query, key, value, gradient))
        of_key, of_value = torch.empty_like(key), torch.zeros_like(value)
        for heads, memory in _groups(value):
            for feature in range(query.shape[1]):
                sums = _sums(query[heads, feature], gradient[heads], memory)
                of_value[heads].addcmul_(key[heads, feature, None], sums)
                torch.sum(sums.mul_(value[heads]), 1, out=of_key[heads, feature])
        results = (of_query, of_key.flip(2), of_value.flip(2))
        return tuple(tensor.unflatten(0, batch_and_heads).transpose(2, 3) for tensor in results)


def _positions_last(tensor: torch.Tensor) -> torch.Tensor:
    """(B, H, N, k) -> (B * H, k, N)."""
    return tensor.flatten(0, 1).transpose(1, 2).contiguous()


def _groups(value: torch.Tensor) -> list[tuple[slice, torch.Tensor]]:
    """The heads of value (B * H, d, N) that are taken at a time, with memory for their sums."""
    size = max(1, BLOCK // value[0].numel())
    memory = torch.empty_like(value[:size])
    starts = range(0, len(value), size)
    return [(slice(start, start + size), memory[: len(value) - start]) for start in starts]


def _sums(feature: torch.Tensor, value: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Cumulative sums over positions of one feature (h, N) times value (h, d, N)."""
    return torch.cumsum(torch.mul(feature[:, None], value, out=memory), 2, out=memory)
