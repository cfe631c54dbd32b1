"""The example processors, one module each. The setting ``processors`` names each module's ``application``."""

#: Processor -> its result store. The demo publishes this store as a table and compares it with Spark's result.
RESULTS = {
    "fleet": "aircraft",
    "routes": "routes",
    "rotations": "sessions",
    "delays": "hours",
    "weather": "conditions",
    "models": "models",
    "carriers": "board",
}
