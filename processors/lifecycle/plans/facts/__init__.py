"""What plans are made from: facts of the processor, export files, dead letters, orphans and the warehouse."""
