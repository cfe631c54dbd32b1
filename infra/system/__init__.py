"""What the operating system gives: processes, files and who may read them, memory, ports."""
