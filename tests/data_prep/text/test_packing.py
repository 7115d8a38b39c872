"""Packing: nothing lost, nothing padded, every row in the agreed form."""

import random

import pytest

from longmix.data_prep.text.packing import DOCUMENTS, ONE_PER_ROW, Packer

CLS, SEP = 2, 3


def pack(documents, length, packing):
    packer = Packer(length, CLS, SEP, packing)
    rows = [row for document in documents for row in packer.add(document)]
    return rows + packer.finish()


def random_documents(generator, count, longest):
    token = iter(range(10, 10**9))
    return [[next(token) for _ in range(generator.randint(1, longest))] for _ in range(count)]


def test_small_example():
    rows = pack([[10, 11], [12, 13, 14, 15, 16, 17], [18]], 8, DOCUMENTS)
    assert rows == [
        ([CLS, 10, 11, SEP, 12, 13, 14, 15], [0, 4]),
        ([CLS, 16, 17, SEP, 18, SEP], [0, 4]),
    ]
    rows = pack([[10, 11], [12, 13, 14, 15, 16, 17, 18], [19]], 8, ONE_PER_ROW)
    assert rows == [
        ([CLS, 10, 11, SEP], [0]),
        ([CLS, 12, 13, 14, 15, 16, 17], [0]),
        ([CLS, 18, SEP], [0]),
        ([CLS, 19, SEP], [0]),
    ]


@pytest.mark.parametrize("packing", [DOCUMENTS, ONE_PER_ROW])
def test_rows_give_the_documents_back(packing):
    generator = random.Random(0)
    for trial in range(300):
        length = generator.randint(8, 20)
        documents = random_documents(generator, generator.randint(1, 12), generator.choice([3, 10, 60]))
        rows = pack(documents, length, packing)
        stream = [token for row in rows for token in row.input_ids[1:]]
        assert stream == [token for document in documents for token in [*document, SEP]], trial
        for row in rows:
            assert row.input_ids[0] == CLS
            assert len(row.input_ids) <= length
            assert any(token > SEP for token in row.input_ids), "a row without a token to learn from"
            ends = [offset + 1 for offset, token in enumerate(row.input_ids) if token == SEP]
            inner = [end for end in ends if end < len(row.input_ids)]
            assert row.document_starts == [0, *inner]
            if packing == ONE_PER_ROW:
                assert row.document_starts == [0]
        if packing == DOCUMENTS:
            assert all(len(row.input_ids) == length for row in rows[:-2])
            # The row before the tail gave a token away only if the tail would have been [CLS] [SEP].
            assert len(rows) == 1 or len(rows[-2].input_ids) == length or len(rows[-1].input_ids) == 3
            assert len(rows) == -(-len(stream) // (length - 1))


def test_tail_takes_the_start_of_a_one_token_document_with_it():
    rows = pack([[10, 11, 12, 13, 14], [15]], 8, DOCUMENTS)
    assert rows == [([CLS, 10, 11, 12, 13, 14, SEP], [0]), ([CLS, 15, SEP], [0])]


def test_empty_documents_leave_no_trace():
    assert pack([[], [10], []], 8, DOCUMENTS) == [([CLS, 10, SEP], [0])]
    assert pack([[]], 8, ONE_PER_ROW) == []


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="8 or more"):
        Packer(7, CLS, SEP)
    with pytest.raises(ValueError, match="one-per-row"):
        Packer(8, CLS, SEP, "tight")
