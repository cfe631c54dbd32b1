"""Access to the operating system: processes, files and their permissions, memory, and TCP ports."""
