"""Raw text and benchmarks in, a tokenizer and Parquet shards with a manifest out."""
