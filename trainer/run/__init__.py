"""One run: set up, trained, evaluated and recorded."""
