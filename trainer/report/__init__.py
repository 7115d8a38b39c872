"""Tables, plots and a page made from run folders: means and intervals over seeds, beside the papers' figures."""
