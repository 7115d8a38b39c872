"""The objectives: the loss and figures of each, and the labels and token masks of its batches."""
