"""Text in, a tokenizer and packed data sets for pre-training out."""
