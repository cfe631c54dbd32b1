"""Checkpoints: a task's store in an object store, so that a lost disk costs the changelog's tail only."""
