"""One pure module for each verb; each module makes a plan from facts. Imports ``plans``."""
