"""Plans, manifests, names and retention of snapshots; pure, except ``gathering``. Imports ``engine``."""
