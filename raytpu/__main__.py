"""``python -m raytpu``: the command, where its script is not on the path, as in a job of Ray."""

from __future__ import annotations

from raytpu.cli.main import main

if __name__ == "__main__":
    main()
