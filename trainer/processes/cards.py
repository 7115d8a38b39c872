"""GPUs as their vendor's data sheets have them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """One GPU. Rates are of dense operands: the sheets of newer cards print twice as much for sparse ones.

    Attributes:
        name: as we write it.
        words: all of them stand in the name that the driver gives.
        sheet: where the figures are from.
        half: operations a second of tensor cores in 16 bits.
        fp32, fp64: operations a second without tensor cores and TF32.
        bandwidth: bytes a second.
        memory: bytes.
        multiprocessors: of the whole card.
        has_bf16: whether its tensor cores take bf16.
    """

    name: str
    words: tuple[str, ...]
    sheet: str
    half: float
    fp32: float
    fp64: float
    bandwidth: float
    memory: float
    multiprocessors: int
    has_bf16: bool = True

    def peak(self, precision: str) -> float | None:
        """Operations a second of matrix products in a precision; None: it has no unit for them."""
        if precision == "fp32":
            return self.fp32
        return self.half if self.has_bf16 or precision == "fp16" else None


# NVIDIA's data sheets. The first whose words are in a name is that card, so the rarer form of a card comes first.
CARDS = (
    Card("V100-PCIe", ("V100", "PCI"), "V100", 112e12, 14e12, 7e12, 900e9, 32e9, 80, has_bf16=False),
    Card("V100", ("V100",), "V100, SXM2", 125e12, 15.7e12, 7.8e12, 900e9, 32e9, 80, has_bf16=False),
    Card("A100-80", ("A100", "80GB"), "A100, 80 GB SXM", 312e12, 19.5e12, 9.7e12, 2039e9, 80e9, 108),
    Card("A100-40", ("A100",), "A100, 40 GB SXM", 312e12, 19.5e12, 9.7e12, 1555e9, 40e9, 108),
    Card("H100-PCIe", ("H100", "PCI"), "H100, PCIe", 756e12, 51e12, 26e12, 2000e9, 80e9, 114),
    Card("H100-NVL", ("H100", "NVL"), "H100, NVL", 835e12, 60e12, 30e12, 3900e9, 94e9, 132),
    Card("H100", ("H100",), "H100, SXM", 989e12, 67e12, 34e12, 3350e9, 80e9, 132),
    Card("H200-NVL", ("H200", "NVL"), "H200, NVL", 835e12, 60e12, 30e12, 4800e9, 141e9, 132),
    Card("H200", ("H200",), "H200, SXM", 989e12, 67e12, 34e12, 4800e9, 141e9, 132),
    Card("B200", ("B200",), "HGX B200, one of eight", 2250e12, 75e12, 37e12, 7700e9, 180e9, 148),
    Card("L40S", ("L40S",), "L40S", 362e12, 91.6e12, 1.4e12, 864e9, 48e9, 142),
)


def card_of(device_name: str) -> Card | None:
    """The card of a name that the driver gives, such as `NVIDIA A100-SXM4-80GB`; None: it is none of CARDS."""
    name = device_name.upper()
    return next((card for card in CARDS if all(word.upper() in name for word in card.words)), None)


def card_named(name: str) -> Card | None:
    """The card that we call so, in any case of letters; None: there is none."""
    return next((card for card in CARDS if card.name.lower() == name.lower()), None)
