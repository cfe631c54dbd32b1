"""The command ``holdfast doctor``. ``gathering`` reads values of machine and services, and ``judging`` judges them."""
