"""What a tokenizer has made of texts, and what of it is worth telling: texts that are cut, tokens that are unknown."""

from dataclasses import dataclass
from typing import Any

FEWEST = 0.01  # share of the examples, and of the tokens


@dataclass
class Tally:
    """Counts over examples.

    Args:
        examples, full: how many there are; of these, how many have all tokens that they may have.
        tokens, unknown: how many they have, special ones left out; of these, how many stand for no piece of text.
    """

    examples: int = 0
    full: int = 0
    tokens: int = 0
    unknown: int = 0

    def add(self, input_ids: list[int], tokenizer: Any, max_length: int) -> None:
        """An example more."""
        self.examples += 1
        self.full += len(input_ids) == max_length
        framing = {tokenizer.cls_token_id, tokenizer.sep_token_id}
        self.tokens += len(input_ids) - sum(map(input_ids.count, framing))
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id not in framing:
            self.unknown += input_ids.count(tokenizer.unk_token_id)

    def notes(self, what: str, max_length: int, limit: int) -> list[str]:
        """What is to be told of examples, `what` they are; `limit`: the longest `max_length` that the model takes."""
        notes = []
        if self.full and self.full >= FEWEST * self.examples:
            remedy = f": the model takes --max-length {limit}" if limit > max_length else ""
            notes.append(
                f"{self.full:,} of {self.examples:,} {what} fill all {max_length} tokens, and may be cut{remedy}"
            )
        if self.unknown and self.unknown >= FEWEST * self.tokens:
            notes.append(
                f"{self.unknown / self.tokens:.0%} of the tokens of the {what} are unknown to the tokenizer, and all "
                "alike to the model: are they in its language, and in its case?"
            )
        return notes
