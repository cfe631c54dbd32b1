"""What is known of a store's values: columns out of models, aggregations and JSON; and how tables follow them. Pure."""
