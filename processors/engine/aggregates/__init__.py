"""Built-in aggregates of each key's messages. They are computed message by message, or with numpy for many messages."""
