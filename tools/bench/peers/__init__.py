"""Speed and memory of Tightbeam beside other engines and beside the floor; ``python -m tools.bench.peers --help``."""
