"""Orders that were sent twice are processed once. An id is remembered for a day."""

from datetime import timedelta

from holdfast import Application, State


def is_new(order: dict, state: State) -> bool:
    """Whether no order with this id came within a day. The state is that of the message's key."""
    seen = f"order/{order['id']}"
    if state.exists(seen):
        return False
    state.set(seen, True)
    return True


def once_for_each_customer() -> Application:
    """The ids of a customer are unique, and the customer is the message key."""
    app = Application(consumer_group="orders-once", auto_offset_reset="earliest")
    seen = app.store("seen", ttl=timedelta(days=1))
    orders = app.dataframe(app.topic("orders"))
    orders.filter(is_new, stateful=True, store=seen).to_topic(app.topic("orders-once"))
    return app


def once_in_all() -> Application:
    """The ids of all customers are unique, and an order may come again with another message key."""
    app = Application(consumer_group="orders-once-in-all", auto_offset_reset="earliest")
    seen = app.store("seen", ttl=timedelta(days=1))
    orders = app.dataframe(app.topic("orders")).group_by("id")
    orders.filter(is_new, stateful=True, store=seen).to_topic(app.topic("orders-once-in-all"))
    return app


def in_one_line() -> Application:
    """As `once_for_each_customer`, by the step that ships. It also drops repeated orders that are late."""
    app = Application(consumer_group="orders-in-one-line", auto_offset_reset="earliest")
    orders = app.dataframe(app.topic("orders"))
    orders.drop_duplicates("id", within=timedelta(days=1)).to_topic(app.topic("orders-in-one-line"))
    return app


if __name__ == "__main__":
    once_for_each_customer().run()
