"""Everything that runs: training, fine-tuning, evaluation, export and reports, behind one command line."""
