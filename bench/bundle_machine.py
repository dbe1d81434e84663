#!/usr/bin/env python3
"""Makes a bundled machine of a machine profile: levels, line size and bandwidth of memory, without raw samples.

    bench/bundle_machine.py PROFILE NAME "FIGURES" > crates/membound/machines/NAME.json

PROFILE is the JSON of `membound measure`, or a raw result under bench/results/ (its first profile is taken); it may
be compressed by gzip.
FIGURES says where the figures come from.
"""
import gzip
import json
import sys

path, name, figures = sys.argv[1:]
with (gzip.open if path.endswith(".gz") else open)(path, "rt") as file:
    profile = json.load(file)
if profile.get("kind") != "machine":
    profile = next(it for it in profile["raw"] if it.get("kind") == "machine")
reason = {"not_measured": {"reason": "left out of the bundled profile"}}
for part in ("model", "latency", "mlp", "window", "loaded", "tlb", "prefetch", "numa", "c2c", "calibration"):
    profile[part] = reason
bandwidth = profile["bandwidth"]
bandwidth["points"] = [dict(it, batches=dict(it["batches"], raw=[])) for it in bandwidth["points"] if it.get("level") == "DRAM"]
profile["host"] = name
profile["conditions"]["labels"] = {"figures": figures}
json.dump(profile, sys.stdout, indent=1, sort_keys=True)
print()
