"""Dagster's daemon with a code server that stays, in place of a new one each minute."""
