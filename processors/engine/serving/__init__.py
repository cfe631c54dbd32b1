"""The processor seen from outside: status, health and control over HTTP, on loopback."""
