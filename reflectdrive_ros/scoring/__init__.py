"""The PDM score and the collision, road and prediction functions that it shares with the planners."""
