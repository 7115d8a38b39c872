"""Images as sequences of pixels or patches."""
