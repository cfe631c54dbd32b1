"""Real data to try Holdfast on: the flights that left New York in 2013, from a package that carries them."""
