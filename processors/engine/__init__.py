"""The code of one worker: it reads, folds, commits, restores and serves. Imports ``infra``."""
