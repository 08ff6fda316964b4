"""What a run would do, without its steps: `ringfeed train --dry-run`."""

__all__: list[str] = []
