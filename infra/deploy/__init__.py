"""Supervisors that run processors and outlive the rest."""
