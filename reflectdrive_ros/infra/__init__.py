"""What every program needs and no planner: files, processes, storage, commands, errors."""
