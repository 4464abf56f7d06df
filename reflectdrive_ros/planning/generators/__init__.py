"""The generators, a file each: from an observation to candidates. They do not import each other."""
