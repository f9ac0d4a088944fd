"""The parts of the section `kernels`: operators at one size each, next to their counterparts."""
