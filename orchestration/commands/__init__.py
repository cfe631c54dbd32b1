"""The commands of the program ``holdfast``, one module for each command or group of commands."""
