"""Erases a message key: removes its copies place by place, and reads each place again to prove that none is left."""
