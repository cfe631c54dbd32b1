"""The example processors, one module each. The setting `processors` names their ``application``."""

#: Processor -> its result store, which the demo publishes as a table and compares with Spark's result.
RESULTS = {
    "fleet": "aircraft",
    "routes": "routes",
    "rotations": "sessions",
    "delays": "hours",
    "weather": "conditions",
    "models": "models",
    "carriers": "board",
}
