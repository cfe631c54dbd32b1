"""The face of processors: what an application declares, how it is found, and how a worker of it is started."""
