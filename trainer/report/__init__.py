"""From run folders to tables, plots and a page: means and intervals over seeds, beside the figures of the papers."""
