"""Topics and groups: facts, changes, reads of offset ranges, copies, and the partitioners of producers."""
