"""What a run file says, checked: names and values only, no data, device or model."""
