"""Commands that set up, start and check the project and the services of this machine, and print logs."""
