"""DeepSpeed and Accelerate behind one protocol: optimizer steps, and the files of their state."""
