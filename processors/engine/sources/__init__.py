"""Sources: users' classes that bring messages from outside of Kafka into a topic of their application."""
