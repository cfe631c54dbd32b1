"""Users declare an application with this package. It also imports the users' declarations, and starts workers."""
