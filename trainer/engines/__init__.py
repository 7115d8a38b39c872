"""DeepSpeed and Accelerate behind one protocol: steps, and the files of their state."""
