"""Consumers and producers, their settings, and the rights that a refused request lacked."""
