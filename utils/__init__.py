"""The project's modules. Imported before torch, for a setting that torch reads as it loads."""

import os

# Threads that wait for others sleep instead of spinning. On a machine that has other work to do,
# spinning made short steps many times slower; on an idle one it gains little.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
