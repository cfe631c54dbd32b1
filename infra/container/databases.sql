-- Run by Postgres' image when its volume is new: Dagster's own database is POSTGRES_DB.
CREATE DATABASE registry;
CREATE DATABASE catalog;
