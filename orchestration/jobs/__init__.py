"""Jobs, one module each."""
