"""Cases for the simulated device and CUDA's own dispatch, and the scripts that make the tables in tests/data."""
