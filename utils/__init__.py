"""The project's modules. Imported before torch, for settings that torch reads as it loads."""

import os

# Threads that wait for others spin for some 20 µs, which bridges the gaps between the products of
# a short step, and then sleep. Spinning on made short steps many times slower on a machine that has
# other work to do; sleeping at once, 1.6 times slower on an idle one.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
