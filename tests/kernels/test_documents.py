"""Runs of equal ids are documents."""

import torch

from longmix.kernels.common.documents import document_begins, document_numbers, document_starts, same_document

IDS = torch.tensor([[4, 4, 9, 9, 9, 4], [1, 1, 1, 1, 1, 1]])


def test_runs_of_equal_ids():
    assert document_begins(IDS).int().tolist() == [[1, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0]]
    assert document_starts(IDS).tolist() == [[0, 0, 2, 2, 2, 5], [0] * 6]
    assert document_numbers(IDS).tolist() == [[0, 0, 1, 1, 1, 2], [0] * 6]
    same = same_document(IDS)
    assert same[0, 0].tolist() == [True, True, False, False, False, False] and same[1].all()


def test_no_rows():
    for function in (document_begins, document_starts, document_numbers):
        assert function(IDS[:, :0]).shape == (2, 0)
    assert same_document(IDS[:, :0]).shape == (2, 0, 0)
