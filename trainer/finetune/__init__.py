"""Fine-tuning on GLUE and custom tasks: readers, encoding, many small runs, results and submission files."""
