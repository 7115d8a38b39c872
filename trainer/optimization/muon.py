"""Muon: the momentum of a matrix, orthogonalised, in place of AdamW's quotient of moments; AdamW for all else.

Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon), with the scale of Liu et al. 2025 (arXiv 2502.16982): an
update has the root mean square of AdamW's, so that both take one learning rate. torch's own Muon takes whole
two-dimensional parameters alone, and DeepSpeed's moves its momentum before a step can be dropped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from .matrices import View
from .optimizer import GuardedOptimizer

# Steps of Newton and Schulz's iteration, and its coefficients (a, b, c) of a X + b X X' X + c (X X')^2 X.
STEPS, COEFFICIENTS = 5, (3.4445, -4.7750, 2.0315)
# Numbers orthogonalised at once: enough to fill a device, and little beside a model whose matrices are larger.
_BATCH = 2**22


def orthogonalise(matrices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """U f(S) V' of each matrix U S V', with f(S) about 1 (0.7 to 1.2) but for singular values near zero.

    Args:
        matrices: (n, rows, columns) in fp32.
        dtype: to compute in.

    Returns:
        (n, rows, columns) in fp32.
    """
    is_tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if is_tall else matrices
    wide = (wide / torch.linalg.matrix_norm(wide, keepdim=True).clamp(min=1e-7)).to(dtype)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = wide @ wide.mT
        wide = torch.baddbmm(wide, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return (wide.mT if is_tall else wide).float()


# Where a matrix is cut: DeepSpeed's stages 1 to 3 give each rank one flat tensor with its share of many parameters.


@dataclass(frozen=True)
class Piece:
    """The numbers of one parameter that a rank holds.

    Attributes:
        place: of the first of them in the rank's flat tensor.
        start: of the first of them in the parameter.
        count: how many; 0 if it holds none.
    """

    place: int
    start: int
    count: int


@dataclass(frozen=True)
class Share:
    """A rank's flat tensor, which stands for several parameters.

    Attributes:
        views: the matrices of each parameter.
        pieces: what this rank holds of each parameter.
        holders: for each parameter, the ranks that hold some of it.
    """

    views: Sequence[View]
    pieces: Sequence[Piece]
    holders: Sequence[frozenset[int]]


class Muon(torch.optim.AdamW):
    """Muon for the groups whose `matrices` are the views of their parameters, AdamW for those where it is empty.

    All ranks have the same gradients, or each has a share of them and `shares` says which. A matrix is always
    orthogonalised whole and beside the same others, so that its update does not depend on how it was cut.

    Args:
        momentum: of the average of gradients; Nesterov's correction goes with it.
        update_rms: root mean square of an update of a matrix, at a rate of 1.
        precision: of the run: in bf16 the iteration runs in bf16, else in fp32.
        adamw: further arguments of AdamW.

    Attributes:
        shares: by flat tensor that stands in the place of a group's parameters.
    """

    def __init__(self, groups: list[dict], momentum: float, update_rms: float, precision: str, **adamw):
        super().__init__(groups, **adamw)
        self.momentum = momentum
        self.update_rms = update_rms
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.shares: dict[torch.Tensor, Share] = {}

    @torch.no_grad()
    def step(self, closure=None) -> None:
        assert closure is None
        groups = self.param_groups
        for group in groups:
            if group["matrices"]:
                self._move_matrices(group)
        self.param_groups = [group for group in groups if not group["matrices"]]
        try:
            super().step()
        finally:
            self.param_groups = groups

    def _move_matrices(self, group: dict) -> None:
        updates = {one: self._momentum(one) for one in group["params"] if one.grad is not None}
        if self.shares:
            for flat, update in updates.items():
                share = self.shares[flat]
                held = [update.narrow(0, piece.place, piece.count) for piece in share.pieces]
                starts = [piece.start for piece in share.pieces]
                self._orthogonalise(held, starts, share.views, share.holders)
        else:
            views = dict(zip(group["params"], group["matrices"], strict=True))
            whole = [update.view(-1) for update in updates.values()]
            here = frozenset({0})  # every rank does the same
            self._orthogonalise(whole, [0] * len(whole), [views[one] for one in updates], [here] * len(whole))
        for parameter, update in updates.items():
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(update, alpha=-group["lr"])

    def _momentum(self, parameter: torch.Tensor) -> torch.Tensor:
        """The gradient with Nesterov's momentum, which this step's gradient joins."""
        state, gradient = self.state[parameter], parameter.grad
        if not state:
            # Names of AdamW's, of which DeepSpeed converts checkpoints: it is an average of gradients like AdamW's.
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        state["step"] += 1
        average = state["exp_avg"].lerp_(gradient, 1 - self.momentum)
        return gradient.lerp(average, self.momentum).contiguous()

    def _orthogonalise(
        self,
        held: Sequence[torch.Tensor],
        starts: Sequence[int],
        views: Sequence[View],
        holders: Sequence[frozenset[int]],
    ) -> None:
        """Orthogonalise and scale, in place, what this rank holds of each parameter, from its number `start` on."""
        for batch in batches(views):
            ranks = frozenset().union(*(holders[index] for index in batch))
            is_held = any(len(held[index]) for index in batch)
            if len(ranks) == 1 and not is_held:
                continue
            _, rows, columns = views[batch[0]]
            sizes = [views[index][0] * rows * columns for index in batch]
            whole = held[0].new_zeros(sum(sizes))
            places = [
                part.narrow(0, starts[index], len(held[index]))
                for index, part in zip(batch, whole.split(sizes), strict=True)
            ]
            for index, place in zip(batch, places, strict=True):
                place.copy_(held[index])
            if len(ranks) > 1:
                # Each number is one rank's, and zero on the others: their sum is exact.
                torch.distributed.all_reduce(whole)
            if is_held:
                scale = self.update_rms * max(rows, columns) ** 0.5
                whole.copy_(orthogonalise(whole.view(-1, rows, columns), self.dtype).mul_(scale).reshape(-1))
                for index, place in zip(batch, places, strict=True):
                    held[index].copy_(place)

    # DeepSpeed's conversion of checkpoints asks every group for AdamW's second moments. Here they are a zero that takes
    # no room in a file, and that is gone once it is loaded.

    def state_dict(self) -> dict:
        """As torch's; with second moments of zero for flat tensors of matrices."""
        saved = super().state_dict()
        if self.shares:
            for index, state in saved["state"].items():
                if "exp_avg_sq" not in state:
                    nothing = torch.zeros(1, dtype=torch.float32).expand(state["exp_avg"].shape)
                    saved["state"][index] = {**state, "exp_avg_sq": nothing}
        return saved

    def load_state_dict(self, state_dict: dict) -> None:
        """As torch's, without the second moments of matrices."""
        super().load_state_dict(state_dict)
        self.drop_second_moments()

    def drop_second_moments(self) -> None:
        """Drop the second moments that came with a checkpoint to flat tensors of matrices."""
        for flat in self.shares.keys() & self.state.keys():
            self.state[flat].pop("exp_avg_sq", None)


class GuardedMuon(GuardedOptimizer, Muon):
    """Muon that clips, and drops a step whose gradient norm is not finite or that its guard refuses.

    The host drops it: the matrices and their momentum know nothing of `found_inf`.
    """


def batches(views: Sequence[View]) -> Iterator[list[int]]:
    """Indices of the views that are orthogonalised together: of one shape, and not too many."""
    alike: dict[tuple[int, int], list[int]] = {}
    for index, (_, rows, columns) in enumerate(views):
        alike.setdefault((rows, columns), []).append(index)
    for (rows, columns), indices in alike.items():
        batch, size = [], 0
        for index in indices:
            added = views[index][0] * rows * columns
            if batch and size + added > _BATCH:
                yield batch
                batch, size = [], 0
            batch.append(index)
            size += added
        yield batch
