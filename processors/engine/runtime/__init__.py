"""The running engine: loop, tasks, commit, assignment, restore, coherence."""
