"""The command serve-local, from a clone."""

from tightbeam.deploy.serving.local_command import main

if __name__ == "__main__":
    main()
