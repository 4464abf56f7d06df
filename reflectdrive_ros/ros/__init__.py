"""The ROS 2 node: messages in, messages out."""
