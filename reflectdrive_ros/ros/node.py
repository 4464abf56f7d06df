def main() -> None:
    raise SystemExit("nothing yet")
