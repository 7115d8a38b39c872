"""What the trials of the recipe for small budgets try: the points of a grid, and one change at a time."""

from dataclasses import dataclass

# The rows of the grid, and its points.
GRID_ROWS = ("transformer", "paramixer", "s3attention")
ADAMW, SLOW, FAST = OPTIMIZERS = ("adamw", "muon, matrices at 0.2", "muon, matrices at 0.5")
OPTIONS = {
    ADAMW: ("optim.name=adamw", "optim.update_rms=0.2", "optim.momentum=0.95"),
    SLOW: ("optim.name=muon", "optim.update_rms=0.2"),
    FAST: ("optim.name=muon", "optim.update_rms=0.5"),
}
MASKS = (0.15, 0.30, 0.40)
# The rates that every row is tried with; where the best one lies at an end, the rate beyond it follows (`rates_of`).
RATES = {ADAMW: (5e-4, 1e-3, 2e-3), SLOW: (5e-4, 1e-3, 2e-3, 4e-3), FAST: (1e-3, 1.5e-3, 2e-3)}


@dataclass(frozen=True)
class Point:
    """One point of the grid."""

    row: str
    optimizer: str
    mask: float
    rate: float

    @property
    def choices(self) -> tuple[str, str, float]:
        """All but the rate, which is chosen."""
        return self.row, self.optimizer, self.mask

    @property
    def words(self) -> str:
        return f"{self.optimizer}, rate {self.rate:g}, mask {self.mask:g}"


@dataclass(frozen=True)
class Change:
    """Something changed in the recipe, in words and as arguments of `longmix train`."""

    words: str
    arguments: tuple[str, ...]


# The recipe's share of masked tokens while these were made; what came of them is tried again below.
BEFORE = Change("30 % masked", ("objective.mask_probability=0.3",))
FOUR_ROWS = ("batch.samples=4", "batch.micro_batch=4")


def _before(words: str, *arguments: str) -> Change:
    return Change(words, (*BEFORE.arguments, *arguments))


# One change at a time, for every mixer, and of one mixer alone.
CHANGED = (
    BEFORE,
    _before("rate 1e-3", "optim.lr=1e-3"),
    _before("rate 3e-3", "optim.lr=3e-3"),
    _before("matrices at 1.0", "optim.update_rms=1.0"),
    _before("momentum 0.95", "optim.momentum=0.95"),
    Change("20 % masked", ("objective.mask_probability=0.2",)),
    Change("40 % masked", ("objective.mask_probability=0.4",)),
    _before("linear schedule", "optim.schedule=linear", "optim.decay_share=null"),
    _before("steps of 4 rows, twice as many", *FOUR_ROWS),
)
# What helped every mixer by one seed, tried again with more of them and all of the short text.
SHARES = (
    BEFORE,
    Change("40 % masked", ("objective.mask_probability=0.4",)),
    Change("50 % masked", ("objective.mask_probability=0.5",)),
)
CONFIRMED = (
    *SHARES,
    Change("40 % masked, steps of 4 rows", ("objective.mask_probability=0.4", *FOUR_ROWS)),
    Change("40 % masked, rate 2e-3", ("objective.mask_probability=0.4", "optim.lr=2e-3")),
)
UNIT_GAIN = "model.spectrum_initialization=unit_gain"
OF_ONE = {"s3attention": (_before("spectrum with unit gain", UNIT_GAIN),)}
CONFIRMED_OF_ONE = {
    "s3attention": (Change("40 % masked, spectrum with unit gain", ("objective.mask_probability=0.4", UNIT_GAIN)),),
    "wavspa": (
        Change("40 % masked, `attention: linear`", ("objective.mask_probability=0.4", "model.attention=linear")),
    ),
}
# The shares of masked tokens again, in runs that are four times as long.
LONGER_ROWS = ("transformer", "converter")
LONGER_TOKENS = 8e6
# Of a model of the size that quickstart trains on GPUs: its recipe there is one of these.
LARGER_ROW, LARGER_MODEL = "transformer", "transformer_small"
LARGER_CHANGES = (
    BEFORE,
    _before("rate 1e-3", "optim.lr=1e-3"),
    Change("rate 1e-3, 40 % masked", ("optim.lr=1e-3", "objective.mask_probability=0.4")),
    Change("rate 5e-4, 40 % masked", ("optim.lr=5e-4", "objective.mask_probability=0.4")),
    Change("rate 2.5e-4, 40 % masked", ("optim.lr=2.5e-4", "objective.mask_probability=0.4")),
    _before(
        "rate 5e-4, matrices at 0.2, momentum 0.95", "optim.lr=5e-4", "optim.update_rms=0.2", "optim.momentum=0.95"
    ),
    _before(
        "rate 2e-3, matrices at 0.2, momentum 0.95", "optim.lr=2e-3", "optim.update_rms=0.2", "optim.momentum=0.95"
    ),
    Change(
        "AdamW, rate 5e-4, linear schedule, 20 % masked",
        (
            *("optim.lr=5e-4", *OPTIONS[ADAMW], "optim.schedule=linear", "optim.decay_share=null"),
            *("optim.warmup_share=0.08", "objective.mask_probability=0.2"),
        ),
    ),
)
# The rate of steps that are larger, in as many of them as the grid's runs have.
BATCH_ROW, BATCH_SAMPLES, BATCH_TOKENS = "transformer", 64, 8e6
BATCH_CHANGES = tuple(
    Change(
        f"rate {rate:g}",
        (f"optim.lr={rate:g}", f"batch.samples={BATCH_SAMPLES}", f"batch.micro_batch={BATCH_SAMPLES}"),
    )
    for rate in (7.5e-4, 1.5e-3, 3e-3, 6e-3)
)
# Paramixer's factors, at two lengths of rows.
FACTORS_ROW, FACTORS_LENGTHS = "paramixer", (128, 512)
# Of its file: hidden width of a factor's network, and the inner layer if the factors have its parameters.
NETWORK, INNER = 24, 512


def factor_changes(length: int) -> tuple[Change, ...]:
    """Other numbers of factors; those shipped are half of what one side needs. By parameters outside embeddings all
    lie within 2 % of the first, but two factors at N = 512, which have 5 % fewer.
    """
    one_sided = (length - 1).bit_length()
    half = (one_sided + 1) // 2
    inner = f"model.intermediate_size={INNER}"
    return (
        Change("as many factors as links to one side need", (f"model.factors={one_sided}", inner)),
        Change("half as many, as shipped", ()),
        Change("half as many, with wider networks", (f"model.link_hidden_size={NETWORK * one_sided // half}", inner)),
        Change("two factors", ("model.factors=2",)),
    )
