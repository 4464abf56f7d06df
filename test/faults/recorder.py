"""Records what the node publishes, as the demo does, until interrupted; if it cannot write: one sentence, exit 2.

python test/faults/recorder.py FOLDER
"""

import sys
from pathlib import Path

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node

from reflectdrive_ros.ros import topics
from reflectdrive_ros.ros.bag import BagWriter
from reflectdrive_ros.ros.processes import full_topic_name


def main(folder: Path) -> int:
    rclpy.init()
    node = Node("recorder")
    try:
        with BagWriter(folder, replace=True) as bag:
            for topic in topics.OUTPUTS:
                name = full_topic_name(topic.name)
                bag.add_topic(name, topic.type)

                def record(data: bytes, name: str = name) -> None:
                    bag.write(name, node.get_clock().now().nanoseconds, data)

                node.create_subscription(topics.message_class(topic.type), name, record, 10, raw=True)
            rclpy.spin(node)
    except OSError as fault:
        sys.stderr.write(f"{folder} cannot be written: {fault.strerror}\n")
        return 2
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
