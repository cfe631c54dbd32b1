"""The verbs, one module each: how facts become a plan. ``PLANNERS`` is their table of contents."""
