"""reflectdrive: on-vehicle planning with planners that correct their own plans."""

__version__ = "0.1.0"
