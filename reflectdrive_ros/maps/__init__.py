"""All that reads or holds a map: Lanelet2, OpenDRIVE, SUMO networks, lanes, elevation, drivable space."""
