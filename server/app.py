"""`uvicorn server.app:app`, from a checkout: the server of `mikit.arena`."""

from mikit import cli
from mikit.arena import server as arena

app = arena.app


def main() -> None:
    """Serve, with the options of `mikit serve`."""
    cli.serve_main()


if __name__ == "__main__":
    main()
