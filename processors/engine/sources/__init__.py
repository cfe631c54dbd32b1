"""Sources: user classes that read from a system other than Kafka and produce messages to a topic of the application."""
