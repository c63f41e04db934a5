"""Several models in one fleet: one program over the columns of all, each verified and written as its own plan."""
