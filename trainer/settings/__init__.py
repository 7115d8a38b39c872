"""The settings of a run file, read and checked: names and values alone, no data, device or model."""
