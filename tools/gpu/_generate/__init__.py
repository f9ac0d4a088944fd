"""The parts of the section `generate`: processes of their own, the names that they share, and the tables."""
