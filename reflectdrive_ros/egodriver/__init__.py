"""Planners behind AlpaSim's driver contract (gRPC), for rendered and CARLA worlds; needs the extra `egodriver`."""
