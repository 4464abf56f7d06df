"""The proving ground: worlds with roads, traffic and cameras."""
