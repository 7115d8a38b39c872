"""The losses and figures of a run, and the masks and labels of its batches."""
