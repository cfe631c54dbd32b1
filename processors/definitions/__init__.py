"""The processors that ship: one module each, whose ``application`` the settings name."""
