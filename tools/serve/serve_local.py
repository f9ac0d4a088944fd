"""The command serve-local, from a clone."""

from tightbeam.deploy.commands.serve_local import main

if __name__ == "__main__":
    main()
