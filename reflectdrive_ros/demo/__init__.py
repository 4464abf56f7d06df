"""The proving ground and recordings as ROS messages: worlds on topics, bags of them, and the live page."""

from .. import ros as ros  # before rclpy: it refuses an RMW_IMPLEMENTATION that would end the process
