"""The settings of a run file, read and checked: names and values only; no data, device or model."""
