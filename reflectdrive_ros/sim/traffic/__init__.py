"""Other road users: SUMO, their demand, motion and scripted behaviour."""
