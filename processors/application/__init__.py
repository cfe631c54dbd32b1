"""The package with which users declare an application. It also imports declarations, and starts workers."""
