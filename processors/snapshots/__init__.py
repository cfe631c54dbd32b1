"""Plans, manifests, names and retention of table snapshots; pure, except ``gathering``. Imports ``engine``."""
