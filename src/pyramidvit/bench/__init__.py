"""How fast networks are on this machine, and how much memory they need."""
